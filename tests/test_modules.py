"""Modules of torch.nn give the CPU's outputs, gradients and buffers on the device."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from compare import assert_same, named_tensors
from torch import nn

pytestmark = pytest.mark.usefixtures("no_fallback")


class Case(NamedTuple):
    """A module and the inputs it is called with.

    It runs in training mode, and also in evaluation mode when it `differs` there. Where errors
    add up over several layers, `tolerance` replaces torch.testing's defaults.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    differs: bool = False
    tolerance: float | None = None


def randn(*shape: int) -> Callable[[], tuple[Any, ...]]:
    """One normal input, differentiable."""
    return lambda: (torch.randn(*shape, requires_grad=True),)


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def scores_and_classes(*shape: int) -> Callable[[], tuple[Any, ...]]:
    """Class scores of shape (N, C, ...) and targets of shape (N, ...)."""
    return lambda: (
        torch.randn(*shape, requires_grad=True),
        ids(shape[1], shape[0], *shape[2:]),
    )


def pair(*shape: int) -> Callable[[], tuple[Any, ...]]:
    """A differentiable input and a target like it."""
    return lambda: (torch.randn(*shape, requires_grad=True), torch.randn(*shape))


def probabilities(*shape: int) -> Callable[[], tuple[Any, ...]]:
    """Probabilities and labels of 0 or 1."""
    return lambda: (
        leaf(torch.rand(*shape) * 0.98 + 0.01),
        ids(2, *shape).float(),
    )


def labels(*shape: int) -> Callable[[], tuple[Any, ...]]:
    """Scores and labels of 0 or 1."""
    return lambda: (torch.randn(*shape, requires_grad=True), ids(2, *shape).float())


def signs(*shape: int) -> torch.Tensor:
    return ids(2, *shape).float() * 2 - 1


def log_distributions() -> tuple[Any, ...]:
    return (
        leaf(torch.randn(4, 6).log_softmax(-1)),
        torch.randn(4, 6).softmax(-1),
    )


def log_distributions_both() -> tuple[Any, ...]:
    return (
        leaf(torch.randn(4, 6).log_softmax(-1)),
        torch.randn(4, 6).log_softmax(-1),
    )


LINEAR = [
    Case("Linear", lambda: nn.Linear(8, 5), randn(3, 8)),
    Case("Linear 3d", lambda: nn.Linear(8, 5), randn(2, 3, 8)),
    Case("Linear 1d", lambda: nn.Linear(8, 5), randn(8)),
    Case("Linear without bias", lambda: nn.Linear(8, 5, bias=False), randn(3, 8)),
    Case(
        "Linear transposed input", lambda: nn.Linear(8, 5), lambda: (leaf(torch.randn(8, 3)).t(),)
    ),
    Case("Linear empty batch", lambda: nn.Linear(8, 5), randn(0, 8)),
    Case("Identity", nn.Identity, randn(3, 4)),
    Case(
        "Bilinear",
        lambda: nn.Bilinear(4, 5, 3),
        lambda: (torch.randn(2, 4, requires_grad=True), torch.randn(2, 5, requires_grad=True)),
    ),
    Case("Flatten", nn.Flatten, randn(2, 3, 4)),
    Case("Unflatten", lambda: nn.Unflatten(1, (2, 3)), randn(2, 6)),
]

CONVOLUTION = [
    Case("Conv1d", lambda: nn.Conv1d(3, 4, 3), randn(2, 3, 9)),
    Case("Conv1d strided", lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), randn(2, 3, 9)),
    Case("Conv1d dilated", lambda: nn.Conv1d(3, 4, 3, dilation=2, padding=2), randn(2, 3, 9)),
    Case("Conv1d depthwise", lambda: nn.Conv1d(4, 8, 3, groups=4), randn(2, 4, 9)),
    Case("Conv1d unbatched", lambda: nn.Conv1d(3, 4, 3), randn(3, 9)),
    Case("Conv2d", lambda: nn.Conv2d(3, 4, 3), randn(2, 3, 7, 6)),
    Case("Conv2d strided", lambda: nn.Conv2d(3, 4, 3, stride=(2, 1)), randn(2, 3, 7, 6)),
    Case("Conv2d padded", lambda: nn.Conv2d(3, 4, (3, 5), padding=(1, 2)), randn(2, 3, 7, 6)),
    Case("Conv2d same", lambda: nn.Conv2d(3, 4, 3, padding="same"), randn(2, 3, 7, 6)),
    Case("Conv2d same, even", lambda: nn.Conv2d(3, 4, 2, padding="same"), randn(2, 3, 7, 6)),
    Case(
        "Conv2d reflected",
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        randn(2, 3, 7, 6),
    ),
    Case("Conv2d dilated", lambda: nn.Conv2d(3, 4, 3, dilation=2), randn(2, 3, 7, 6)),
    Case("Conv2d grouped", lambda: nn.Conv2d(4, 6, 3, groups=2), randn(2, 4, 7, 6)),
    Case("Conv2d depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4), randn(2, 4, 7, 6)),
    Case("Conv2d 1x1 without bias", lambda: nn.Conv2d(3, 4, 1, bias=False), randn(2, 3, 7, 6)),
    Case("Conv2d patches", lambda: nn.Conv2d(3, 8, 4, stride=4), randn(2, 3, 8, 8)),
    Case("Conv2d unbatched", lambda: nn.Conv2d(3, 4, 3), randn(3, 7, 6)),
    Case(
        "Conv2d channels last",
        lambda: nn.Conv2d(3, 4, 3),
        lambda: (leaf(torch.randn(2, 3, 7, 6).to(memory_format=torch.channels_last)),),
    ),
    Case("Conv3d", lambda: nn.Conv3d(2, 3, 2), randn(2, 2, 4, 5, 4)),
    Case("Conv3d strided", lambda: nn.Conv3d(2, 3, 3, stride=2, padding=1), randn(2, 2, 4, 5, 4)),
    Case("ConvTranspose1d", lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), randn(2, 3, 5)),
    Case("ConvTranspose2d", lambda: nn.ConvTranspose2d(3, 4, 3), randn(2, 3, 4, 5)),
    Case(
        "ConvTranspose2d strided",
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
        randn(2, 3, 4, 5),
    ),
    Case(
        "ConvTranspose2d grouped",
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2),
        randn(2, 4, 4, 5),
    ),
    Case("ConvTranspose3d", lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), randn(1, 2, 3, 3, 3)),
]

NORMALIZATION = [
    Case("BatchNorm1d", lambda: nn.BatchNorm1d(5), randn(6, 5), differs=True),
    Case("BatchNorm1d 3d", lambda: nn.BatchNorm1d(5), randn(3, 5, 4), differs=True),
    Case("BatchNorm2d", lambda: nn.BatchNorm2d(3), randn(4, 3, 5, 5), differs=True),
    Case("BatchNorm3d", lambda: nn.BatchNorm3d(3), randn(2, 3, 2, 4, 3), differs=True),
    Case(
        "BatchNorm2d without affine",
        lambda: nn.BatchNorm2d(3, affine=False),
        randn(4, 3, 5, 5),
        True,
    ),
    Case(
        "BatchNorm2d without statistics",
        lambda: nn.BatchNorm2d(3, track_running_stats=False),
        randn(4, 3, 5, 5),
        True,
    ),
    Case("BatchNorm2d averaging", lambda: nn.BatchNorm2d(3, momentum=None), randn(4, 3, 5, 5)),
    Case("LayerNorm", lambda: nn.LayerNorm(8), randn(2, 3, 8)),
    Case("LayerNorm 2d", lambda: nn.LayerNorm((3, 8)), randn(2, 3, 8)),
    Case("LayerNorm plain", lambda: nn.LayerNorm(8, elementwise_affine=False), randn(2, 3, 8)),
    Case("LayerNorm without bias", lambda: nn.LayerNorm(8, bias=False), randn(2, 3, 8)),
    Case("RMSNorm", lambda: nn.RMSNorm(8), randn(2, 3, 8)),
    Case("RMSNorm eps", lambda: nn.RMSNorm(8, eps=1e-5), randn(2, 3, 8)),
    Case("GroupNorm", lambda: nn.GroupNorm(2, 6), randn(2, 6, 4, 3)),
    Case("GroupNorm 2d", lambda: nn.GroupNorm(2, 12), randn(4, 12)),
    Case("InstanceNorm1d", lambda: nn.InstanceNorm1d(3), randn(2, 3, 6)),
    Case("InstanceNorm2d", lambda: nn.InstanceNorm2d(3, affine=True), randn(2, 3, 5, 4)),
    Case(
        "InstanceNorm2d with statistics",
        lambda: nn.InstanceNorm2d(3, track_running_stats=True),
        randn(2, 3, 5, 4),
        True,
    ),
    Case("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), randn(2, 5, 4, 4)),
    Case("CosineSimilarity", nn.CosineSimilarity, pair(4, 6)),
    Case("PairwiseDistance", nn.PairwiseDistance, pair(4, 6)),
]

EMBEDDING = [
    Case("Embedding", lambda: nn.Embedding(10, 4), lambda: (ids(10, 2, 5),)),
    Case("Embedding int32", lambda: nn.Embedding(10, 4), lambda: (ids(10, 2, 5).int(),)),
    Case(
        "Embedding padded",
        lambda: nn.Embedding(10, 4, padding_idx=3),
        lambda: (torch.tensor([[3, 1, 3], [0, 9, 1]]),),
    ),
    Case(
        "Embedding by frequency",
        lambda: nn.Embedding(10, 4, scale_grad_by_freq=True),
        lambda: (torch.tensor([[3, 1, 3], [0, 9, 1]]),),
    ),
    *(
        Case(
            f"EmbeddingBag {mode}",
            lambda mode=mode: nn.EmbeddingBag(10, 4, mode=mode),  # type: ignore[misc]
            lambda: (ids(10, 3, 4),),
        )
        for mode in ("sum", "mean", "max")
    ),
    Case(
        "EmbeddingBag offsets",
        lambda: nn.EmbeddingBag(10, 4),
        lambda: (ids(10, 7), torch.tensor([0, 3, 3])),
    ),
    Case(
        "EmbeddingBag weighted",
        lambda: nn.EmbeddingBag(10, 4, mode="sum"),
        lambda: (ids(10, 7), torch.tensor([0, 3, 5]), leaf(torch.rand(7))),
    ),
]


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, with a mask if asked."""

    def __init__(self, causal: bool = False, padded: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)
        self.causal = causal
        self.padded = padded

    def forward(self, x: torch.Tensor) -> Any:
        length = x.shape[1] if self.attention.batch_first else x.shape[0]
        batch = x.shape[0] if self.attention.batch_first else x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        padding = torch.zeros(batch, length, dtype=torch.bool, device=x.device)
        padding[0, -1] = True
        return self.attention(
            x,
            x,
            x,
            attn_mask=causal if self.causal else None,
            key_padding_mask=padding if self.padded else None,
            need_weights=not self.causal,
        )


ATTENTION = [
    Case("MultiheadAttention", SelfAttention, randn(5, 2, 8), True),
    Case("MultiheadAttention batch first", lambda: SelfAttention(batch_first=True), randn(2, 5, 8)),
    Case("MultiheadAttention causal", lambda: SelfAttention(causal=True), randn(5, 2, 8), True),
    Case("MultiheadAttention padded", lambda: SelfAttention(padded=True), randn(5, 2, 8), True),
    Case(
        "MultiheadAttention other widths",
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4),
        lambda: (
            torch.randn(5, 2, 8, requires_grad=True),
            torch.randn(3, 2, 6, requires_grad=True),
            torch.randn(3, 2, 4, requires_grad=True),
        ),
    ),
    *(
        Case(
            f"TransformerEncoderLayer {'pre' if first else 'post'}-norm {activation}",
            lambda first=first, activation=activation: nn.TransformerEncoderLayer(  # type: ignore[misc]
                8, 2, 16, dropout=0.0, activation=activation, batch_first=True, norm_first=first
            ),
            randn(2, 5, 8),
            True,
        )
        for first, activation in ((False, "relu"), (True, "gelu"))
    ),
    Case(
        "TransformerDecoderLayer",
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
        lambda: (
            torch.randn(5, 2, 8, requires_grad=True),
            torch.randn(3, 2, 8, requires_grad=True),
        ),
    ),
    Case(
        "Transformer",
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        lambda: (
            torch.randn(2, 4, 8, requires_grad=True),
            torch.randn(2, 3, 8, requires_grad=True),
        ),
        tolerance=2e-5,
    ),
]


def sequence_and_state(states: int) -> Callable[[], tuple[Any, ...]]:
    """A sequence with the state to begin with: one tensor, or a pair of them."""

    def make() -> tuple[Any, ...]:
        state = tuple(torch.randn(1, 2, 6, requires_grad=True) for _ in range(states))
        return torch.randn(5, 2, 4, requires_grad=True), state if states > 1 else state[0]

    return make


RECURRENT = [
    *(
        case
        for kind in (nn.RNN, nn.LSTM, nn.GRU)
        for case in (
            Case(kind.__name__, lambda k=kind: k(4, 6), randn(5, 2, 4), True),  # type: ignore[misc]
            Case(
                f"{kind.__name__} two layers, both ways",
                lambda k=kind: k(4, 6, num_layers=2, bidirectional=True),  # type: ignore[misc]
                randn(5, 2, 4),
            ),
            Case(
                f"{kind.__name__} batch first, without bias",
                lambda k=kind: k(4, 6, bias=False, batch_first=True),  # type: ignore[misc]
                randn(2, 5, 4),
            ),
            Case(
                f"{kind.__name__} from a state",
                lambda k=kind: k(4, 6),  # type: ignore[misc]
                sequence_and_state(2 if kind is nn.LSTM else 1),
            ),
        )
    ),
    Case("RNN relu", lambda: nn.RNN(4, 6, nonlinearity="relu"), randn(5, 2, 4)),
    Case("LSTM projected", lambda: nn.LSTM(4, 6, proj_size=3), randn(5, 2, 4)),
    Case("RNNCell", lambda: nn.RNNCell(4, 6), randn(2, 4)),
    Case("LSTMCell", lambda: nn.LSTMCell(4, 6), randn(2, 4)),
    Case("GRUCell", lambda: nn.GRUCell(4, 6), randn(2, 4)),
]

ACTIVATION = [
    *(
        Case(kind.__name__, kind, randn(4, 6))
        for kind in (
            nn.CELU,
            nn.ELU,
            nn.GELU,
            nn.Hardshrink,
            nn.Hardsigmoid,
            nn.Hardswish,
            nn.Hardtanh,
            nn.LeakyReLU,
            nn.LogSigmoid,
            nn.Mish,
            nn.PReLU,
            nn.ReLU,
            nn.ReLU6,
            nn.SELU,
            nn.SiLU,
            nn.Sigmoid,
            nn.Softplus,
            nn.Softshrink,
            nn.Softsign,
            nn.Tanh,
            nn.Tanhshrink,
        )
    ),
    Case("GELU tanh", lambda: nn.GELU("tanh"), randn(4, 6)),
    Case("GLU", nn.GLU, randn(4, 6)),
    Case("PReLU per channel", lambda: nn.PReLU(3), randn(2, 3, 4)),
    Case("RReLU", nn.RReLU, randn(4, 6)),
    Case("ReLU in place", lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(True)), randn(4, 6)),
    Case("SiLU in place", lambda: nn.Sequential(nn.Linear(6, 6), nn.SiLU(True)), randn(4, 6)),
    Case("Softplus beta", lambda: nn.Softplus(beta=2.0, threshold=1.0), randn(4, 6)),
    Case("Threshold", lambda: nn.Threshold(0.1, 20.0), randn(4, 6)),
    Case("Softmax", lambda: nn.Softmax(-1), randn(4, 6)),
    Case("Softmax middle", lambda: nn.Softmax(1), randn(2, 5, 3)),
    Case("Softmax2d", nn.Softmax2d, randn(2, 3, 4, 4)),
    Case("Softmin", lambda: nn.Softmin(-1), randn(4, 6)),
    Case("LogSoftmax", lambda: nn.LogSoftmax(-1), randn(4, 6)),
]

POOLING = [
    Case("MaxPool1d", lambda: nn.MaxPool1d(3), randn(2, 3, 10)),
    Case("MaxPool1d overlapping", lambda: nn.MaxPool1d(3, 2, 1), randn(2, 3, 10)),
    Case("MaxPool2d", lambda: nn.MaxPool2d(2), randn(2, 3, 6, 8)),
    Case("MaxPool2d overlapping", lambda: nn.MaxPool2d(3, 2, 1), randn(2, 3, 7, 8)),
    Case("MaxPool2d dilated", lambda: nn.MaxPool2d(2, 1, dilation=2), randn(2, 3, 7, 8)),
    Case("MaxPool2d ceil", lambda: nn.MaxPool2d(3, 2, ceil_mode=True), randn(2, 3, 6, 8)),
    Case("MaxPool2d indices", lambda: nn.MaxPool2d(2, return_indices=True), randn(2, 3, 6, 8)),
    Case("MaxPool3d", lambda: nn.MaxPool3d(2), randn(1, 2, 4, 4, 4)),
    Case("AvgPool1d", lambda: nn.AvgPool1d(3, 2, 1), randn(2, 3, 10)),
    Case("AvgPool2d", lambda: nn.AvgPool2d(2), randn(2, 3, 6, 8)),
    Case("AvgPool2d overlapping", lambda: nn.AvgPool2d(3, 2, 1), randn(2, 3, 7, 8)),
    Case(
        "AvgPool2d uncounted padding",
        lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        randn(2, 3, 6, 8),
    ),
    Case("AvgPool3d", lambda: nn.AvgPool3d(2), randn(1, 2, 4, 4, 4)),
    Case("LPPool2d", lambda: nn.LPPool2d(2, 2), randn(2, 3, 6, 8)),
    Case("AdaptiveAvgPool1d", lambda: nn.AdaptiveAvgPool1d(4), randn(2, 3, 10)),
    Case("AdaptiveAvgPool2d one", lambda: nn.AdaptiveAvgPool2d(1), randn(2, 3, 6, 8)),
    Case("AdaptiveAvgPool2d even", lambda: nn.AdaptiveAvgPool2d((3, 4)), randn(2, 3, 6, 8)),
    Case("AdaptiveAvgPool2d uneven", lambda: nn.AdaptiveAvgPool2d((4, 3)), randn(2, 3, 6, 8)),
    Case("AdaptiveMaxPool1d", lambda: nn.AdaptiveMaxPool1d(4), randn(2, 3, 10)),
    Case("AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d((4, 3)), randn(2, 3, 6, 8)),
    Case(
        "MaxUnpool2d",
        lambda: nn.MaxUnpool2d(2),
        lambda: (
            torch.randn(1, 2, 2, 2, requires_grad=True),
            torch.tensor([[[[0, 3], [9, 14]], [[5, 2], [8, 15]]]]),
        ),
    ),
]

RESAMPLING = [
    Case("Upsample nearest", lambda: nn.Upsample(scale_factor=2), randn(2, 3, 4, 5)),
    Case("Upsample nearest to size", lambda: nn.Upsample(size=(7, 6)), randn(2, 3, 4, 5)),
    Case("Upsample nearest 1d", lambda: nn.Upsample(scale_factor=3), randn(2, 3, 4)),
    Case("Upsample nearest 3d", lambda: nn.Upsample(scale_factor=2), randn(1, 2, 2, 3, 2)),
    Case("Upsample linear", lambda: nn.Upsample(scale_factor=2, mode="linear"), randn(2, 3, 4)),
    Case(
        "Upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), randn(2, 3, 4, 5)
    ),
    Case(
        "Upsample bilinear aligned",
        lambda: nn.Upsample(size=(7, 9), mode="bilinear", align_corners=True),
        randn(2, 3, 4, 5),
    ),
    Case(
        "Upsample bicubic", lambda: nn.Upsample(scale_factor=2, mode="bicubic"), randn(2, 3, 4, 5)
    ),
    Case(
        "Downsample bilinear", lambda: nn.Upsample(size=(2, 3), mode="bilinear"), randn(2, 3, 4, 5)
    ),
    Case("PixelShuffle", lambda: nn.PixelShuffle(2), randn(2, 8, 3, 4)),
    Case("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), randn(2, 2, 6, 4)),
    Case("ChannelShuffle", lambda: nn.ChannelShuffle(2), randn(2, 6, 3, 4)),
    Case("Unfold", lambda: nn.Unfold(3, padding=1, stride=2), randn(2, 3, 6, 5)),
    Case("Fold", lambda: nn.Fold((5, 4), 2), randn(2, 8, 12)),
    Case("Fold strided", lambda: nn.Fold((6, 4), 2, stride=2), randn(2, 8, 6)),
]

PADDING = [
    Case("ConstantPad1d", lambda: nn.ConstantPad1d((2, 1), 3.5), randn(2, 3, 5)),
    Case("ConstantPad2d", lambda: nn.ConstantPad2d((2, 1, 0, 3), 3.5), randn(2, 3, 5, 4)),
    Case("ConstantPad2d cropping", lambda: nn.ConstantPad2d((-1, 1, 0, -2), 0), randn(2, 3, 5, 4)),
    Case("ConstantPad3d", lambda: nn.ConstantPad3d(1, -1.0), randn(1, 2, 3, 3, 3)),
    Case("ZeroPad1d", lambda: nn.ZeroPad1d(2), randn(2, 3, 5)),
    Case("ZeroPad2d", lambda: nn.ZeroPad2d((2, 1, 0, 3)), randn(2, 3, 5, 4)),
    Case("ReflectionPad1d", lambda: nn.ReflectionPad1d((2, 1)), randn(2, 3, 5)),
    Case("ReflectionPad2d", lambda: nn.ReflectionPad2d((2, 1, 0, 3)), randn(2, 3, 5, 4)),
    Case("ReflectionPad3d", lambda: nn.ReflectionPad3d(1), randn(1, 2, 3, 3, 3)),
    Case("ReplicationPad1d", lambda: nn.ReplicationPad1d((2, 1)), randn(2, 3, 5)),
    Case("ReplicationPad2d", lambda: nn.ReplicationPad2d((2, 1, 0, 3)), randn(2, 3, 5, 4)),
    Case("ReplicationPad3d", lambda: nn.ReplicationPad3d(1), randn(1, 2, 3, 3, 3)),
    Case("CircularPad1d", lambda: nn.CircularPad1d((2, 1)), randn(2, 3, 5)),
    Case("CircularPad2d", lambda: nn.CircularPad2d((2, 1, 0, 3)), randn(2, 3, 5, 4)),
]

CLASSES = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5])

LOSS = [
    Case("CrossEntropyLoss", nn.CrossEntropyLoss, scores_and_classes(4, 5)),
    Case(
        "CrossEntropyLoss sum",
        lambda: nn.CrossEntropyLoss(reduction="sum"),
        scores_and_classes(4, 5),
    ),
    Case(
        "CrossEntropyLoss each",
        lambda: nn.CrossEntropyLoss(reduction="none"),
        scores_and_classes(4, 5),
    ),
    Case(
        "CrossEntropyLoss ignoring",
        lambda: nn.CrossEntropyLoss(ignore_index=2),
        lambda: (torch.randn(4, 5, requires_grad=True), torch.tensor([2, 0, 4, 2])),
    ),
    Case(
        "CrossEntropyLoss ignoring the default",
        nn.CrossEntropyLoss,
        lambda: (torch.randn(4, 5, requires_grad=True), torch.tensor([-100, 0, 4, -100])),
    ),
    Case(
        "CrossEntropyLoss smoothed",
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        scores_and_classes(4, 5),
    ),
    Case(
        "CrossEntropyLoss weighted", lambda: nn.CrossEntropyLoss(CLASSES), scores_and_classes(4, 5)
    ),
    Case(
        "CrossEntropyLoss weighted, smoothed, ignoring",
        lambda: nn.CrossEntropyLoss(CLASSES, label_smoothing=0.2, ignore_index=1),
        lambda: (torch.randn(4, 5, requires_grad=True), torch.tensor([1, 0, 4, 2])),
    ),
    Case("CrossEntropyLoss of images", nn.CrossEntropyLoss, scores_and_classes(2, 5, 3, 4)),
    Case(
        "CrossEntropyLoss of probabilities",
        nn.CrossEntropyLoss,
        lambda: (torch.randn(4, 5, requires_grad=True), torch.randn(4, 5).softmax(1)),
    ),
    Case("CrossEntropyLoss of one", nn.CrossEntropyLoss, lambda: (leaf(torch.randn(5)), ids(5))),
    Case("NLLLoss", nn.NLLLoss, scores_and_classes(4, 5)),
    Case(
        "NLLLoss weighted, ignoring",
        lambda: nn.NLLLoss(CLASSES, ignore_index=0),
        scores_and_classes(4, 5),
    ),
    Case("NLLLoss of images", nn.NLLLoss, scores_and_classes(2, 5, 3, 4)),
    Case("MSELoss", nn.MSELoss, pair(4, 6)),
    Case("MSELoss each", lambda: nn.MSELoss(reduction="none"), pair(4, 6)),
    Case("MSELoss sum", lambda: nn.MSELoss(reduction="sum"), pair(4, 6)),
    Case("L1Loss", nn.L1Loss, pair(4, 6)),
    Case("SmoothL1Loss", nn.SmoothL1Loss, pair(4, 6)),
    Case("SmoothL1Loss beta", lambda: nn.SmoothL1Loss(beta=0.3), pair(4, 6)),
    Case("HuberLoss", lambda: nn.HuberLoss(delta=0.7), pair(4, 6)),
    Case("BCELoss", nn.BCELoss, probabilities(4, 6)),
    Case("BCEWithLogitsLoss", nn.BCEWithLogitsLoss, labels(4, 6)),
    Case(
        "BCEWithLogitsLoss weighted",
        lambda: nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.5, 1.0, 2.0])),
        labels(4, 3),
    ),
    Case("KLDivLoss", lambda: nn.KLDivLoss(reduction="batchmean"), log_distributions),
    Case(
        "KLDivLoss of logarithms",
        lambda: nn.KLDivLoss(reduction="sum", log_target=True),
        log_distributions_both,
    ),
    Case("PoissonNLLLoss", nn.PoissonNLLLoss, labels(4, 6)),
    Case(
        "GaussianNLLLoss", nn.GaussianNLLLoss, lambda: (*pair(4, 6)(), leaf(torch.rand(4, 6) + 0.1))
    ),
    Case("SoftMarginLoss", nn.SoftMarginLoss, lambda: (leaf(torch.randn(4, 6)), signs(4, 6))),
    Case(
        "HingeEmbeddingLoss", nn.HingeEmbeddingLoss, lambda: (leaf(torch.randn(4, 6)), signs(4, 6))
    ),
    Case("CosineEmbeddingLoss", nn.CosineEmbeddingLoss, lambda: (*pair(4, 6)(), signs(4))),
    Case(
        "MarginRankingLoss",
        lambda: nn.MarginRankingLoss(0.1),
        lambda: (*pair(4)(), signs(4)),
    ),
    Case(
        "TripletMarginLoss",
        nn.TripletMarginLoss,
        lambda: tuple(torch.randn(4, 6, requires_grad=True) for _ in range(3)),
    ),
    Case("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, labels(4, 6)),
    Case("MultiMarginLoss", nn.MultiMarginLoss, scores_and_classes(4, 5)),
    Case(
        "CTCLoss",
        nn.CTCLoss,
        lambda: (
            leaf(torch.randn(8, 2, 5).log_softmax(-1)),
            ids(4, 2, 3) + 1,
            torch.tensor([8, 7]),
            torch.tensor([3, 2]),
        ),
    ),
]

COMPOSED = [
    Case(
        "convolutional block",
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        randn(4, 3, 8, 8),
        True,
        tolerance=2e-5,
    ),
    Case(
        "weight normalized",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)),
        randn(3, 6),
    ),
    Case(
        "spectrally normalized",
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)),
        randn(3, 6),
    ),
]

CASES = [
    *LINEAR,
    *CONVOLUTION,
    *NORMALIZATION,
    *EMBEDDING,
    *ATTENTION,
    *RECURRENT,
    *ACTIVATION,
    *POOLING,
    *RESAMPLING,
    *PADDING,
    *LOSS,
    *COMPOSED,
]
# Random in training mode: its slopes have a test of their own.
EVAL_ONLY = {"RReLU"}
RUNS = [
    pytest.param(case, training, id=f"{case.name}{'' if training else ', eval'}")
    for case in CASES
    for training in ((True, False) if case.differs else (case.name not in EVAL_ONLY,))
]


def seed(case: Case) -> None:
    """Makes the case's weights and inputs independent of the tests that ran before."""
    torch.manual_seed(zlib.crc32(case.name.encode()))


def forward_backward(
    module: nn.Module, inputs: tuple[Any, ...], device: str | torch.device
) -> dict[str, torch.Tensor]:
    """Returns every tensor that comes of a call and its backward: outputs, gradients, buffers."""
    outputs = module(*inputs)
    results = dict(named_tensors(outputs))
    differentiable = [out for out in results.values() if out.requires_grad]
    if differentiable:
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(out.shape, generator=generator) for out in differentiable]
        torch.autograd.backward(
            differentiable,
            [w.to(device, out.dtype) for w, out in zip(weights, differentiable, strict=True)],
        )
    leaves: dict[str, torch.Tensor] = dict(module.named_parameters())
    leaves.update((k, v) for k, v in named_tensors(inputs, "input") if v.requires_grad)
    for name, leaf_tensor in leaves.items():
        if leaf_tensor.is_leaf and leaf_tensor.grad is not None:
            results[f"gradient of {name}"] = leaf_tensor.grad
    results.update((f"buffer {name}", buffer) for name, buffer in module.named_buffers())
    return results


def copy_inputs(value: Any, device: str | torch.device) -> Any:
    """Moves inputs, which stay leaves of a graph of their own."""
    if isinstance(value, tuple):
        return tuple(copy_inputs(item, device) for item in value)
    return value.detach().to(device).requires_grad_(value.requires_grad)


@pytest.mark.parametrize(("case", "training"), RUNS)
def test_module(case: Case, training: bool, device: torch.device) -> None:
    seed(case)
    module = case.make().train(training)
    inputs = case.inputs()
    on_device = copy.deepcopy(module).to(device)
    actual = forward_backward(on_device, copy_inputs(inputs, device), device)
    expected = forward_backward(module, copy_inputs(inputs, "cpu"), "cpu")
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert_same(actual[name], value, case.tolerance, case.tolerance, f"{case.name}: {name}")


LOW_PRECISION = [
    case
    for case in CASES
    if case.name
    in (
        "Linear",
        "Conv2d",
        "BatchNorm2d",
        "LayerNorm",
        "RMSNorm",
        "GroupNorm",
        "Embedding",
        "MultiheadAttention",
        "GELU",
        "SiLU",
        "Softmax",
        "MaxPool2d",
        "AvgPool2d",
        "Upsample nearest",
        "CrossEntropyLoss",
        "MSELoss",
    )
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", LOW_PRECISION, ids=lambda case: case.name)
def test_module_dtype(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    seed(case)
    module = case.make().to(dtype)
    inputs = tuple(
        leaf(value.to(dtype)) if value.is_floating_point() else value for value in case.inputs()
    )
    on_device = copy.deepcopy(module).to(device)
    actual = forward_backward(on_device, copy_inputs(inputs, device), device)
    expected = forward_backward(module, copy_inputs(inputs, "cpu"), "cpu")
    assert actual.keys() == expected.keys()
    # The CPU rounds intermediate results where the device may keep them in float32, and the
    # other way round: a few units in the last place of the largest terms.
    wide = {torch.bfloat16: 4e-2, torch.float16: 5e-3}.get(dtype)
    for name, value in expected.items():
        assert_same(actual[name], value, wide, wide, f"{case.name}: {name}")


DROPOUTS = [
    pytest.param(nn.Dropout(0.3), (200, 300), (), id="Dropout"),
    pytest.param(nn.Dropout1d(0.3), (100, 60, 4), (2,), id="Dropout1d"),
    pytest.param(nn.Dropout2d(0.3), (100, 60, 4, 3), (2, 3), id="Dropout2d"),
]


@pytest.mark.parametrize(("module", "shape", "together"), DROPOUTS)
def test_dropout(
    module: nn.Module, shape: tuple[int, ...], together: tuple[int, ...], device: torch.device
) -> None:
    inputs = torch.ones(shape, device=device, requires_grad=True)
    torch.manual_seed(5)
    output = module(inputs)
    output.backward(torch.full(shape, 2.0, device=device))
    assert inputs.grad is not None
    values = output.detach().cpu()
    kept = values != 0
    torch.testing.assert_close(values[kept], torch.full_like(values[kept], 1 / 0.7))
    torch.testing.assert_close(inputs.grad.cpu(), values * 2)
    units = kept.all(together) if together else kept
    if together:
        assert torch.equal(units, kept.any(together)), "a channel was dropped in part"
    # Five standard deviations of a binomial.
    assert abs(units.float().mean().item() - 0.7) < 5 * (0.21 / units.numel()) ** 0.5

    again = module(inputs)
    assert not torch.equal(again.cpu(), output.cpu()), "the mask repeats"
    torch.manual_seed(5)
    assert torch.equal(module(inputs).cpu(), output.cpu()), "the seed does not decide the mask"
    module.eval()
    assert torch.equal(module(inputs).cpu(), inputs.cpu())
    module.train()


def test_alpha_dropout_keeps_mean_and_variance(device: torch.device) -> None:
    torch.manual_seed(0)
    output = nn.AlphaDropout(0.2)(torch.randn(200, 300, device=device))
    assert abs(output.mean().item()) < 0.02
    assert abs(output.var().item() - 1) < 0.05


def test_rrelu_slopes(device: torch.device) -> None:
    slopes = -nn.RReLU(0.1, 0.3)(torch.full((100, 100), -1.0, device=device)).cpu()
    assert slopes.min() >= 0.1
    assert slopes.max() <= 0.3
    assert abs(slopes.mean().item() - 0.2) < 0.005


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequence(kind: type[nn.RNNBase], device: torch.device) -> None:
    module = kind(4, 6)  # type: ignore[call-arg,arg-type]
    inputs, lengths = torch.randn(5, 3, 4), torch.tensor([5, 3, 2])

    def run(each: nn.Module, at: str | torch.device) -> dict[str, torch.Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(inputs.to(at), lengths)
        output, state = each(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(output)
        padded.sum().backward()
        results = dict(named_tensors((padded, state)))
        for name, parameter in each.named_parameters():
            assert parameter.grad is not None
            results[name] = parameter.grad
        return results

    actual = run(copy.deepcopy(module).to(device), device)
    for name, value in run(module, "cpu").items():
        assert_same(actual[name], value, what=name)


def test_move_keeps_what_is_shared(device: torch.device) -> None:
    table, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, head)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = table.weight
    model.to(device)
    assert table.weight is head.weight
    assert table.weight is before

    indices = ids(10, 3)
    model(indices.to(device)).sum().backward()
    optimizer.step()
    twin(indices).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.5).step()
    assert_same(table.weight, next(twin.parameters()), what="weight after the step")
