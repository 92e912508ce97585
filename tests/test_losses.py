"""Loss functions and their gradients against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

REDUCTIONS = ["mean", "sum", "none"]
Loss = Callable[..., Any]

ELEMENTWISE: dict[str, Loss] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "smooth_l1 beta": lambda x, t, reduction: functional.smooth_l1_loss(
        x, t, beta=0.3, reduction=reduction
    ),
    "huber": functional.huber_loss,
    "huber delta": lambda x, t, reduction: functional.huber_loss(
        x, t, delta=0.4, reduction=reduction
    ),
    "soft_margin": lambda x, t, reduction: functional.soft_margin_loss(
        x, t.detach(), reduction=reduction
    ),
    "kl_div": lambda x, t, reduction: functional.kl_div(x, t.softmax(-1), reduction=reduction),
    "kl_div log": lambda x, t, reduction: functional.kl_div(
        x, t, log_target=True, reduction=reduction
    ),
    "poisson": functional.poisson_nll_loss,
    "bce_with_logits": lambda x, t, reduction: functional.binary_cross_entropy_with_logits(
        x, t.sigmoid(), reduction=reduction
    ),
    "bce": lambda x, t, reduction: functional.binary_cross_entropy(
        x.sigmoid(), t.sigmoid().detach(), reduction=reduction
    ),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, reduction: str) -> None:
    def run(x: torch.Tensor, target: torch.Tensor) -> Any:
        return ELEMENTWISE[name](x, target, reduction=reduction)

    check(run, data(3, 4), data(3, 4))
    if reduction != "mean":  # PyTorch's own meta kernels divide by the number of elements
        check(run, data(0, 4), data(0, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mse", "smooth_l1", "huber"])
def test_elementwise_dtypes(name: str, dtype: torch.dtype) -> None:
    check(
        lambda x, t: ELEMENTWISE[name](x, t, reduction="mean"),
        data(3, 4, dtype=dtype),
        data(3, 4, dtype=dtype),
    )


def test_binary_cross_entropy_weights() -> None:
    weight, positive = torch.rand(4), torch.rand(4) * 3

    def run(x: torch.Tensor, t: torch.Tensor, weight: torch.Tensor, positive: torch.Tensor) -> Any:
        return [
            functional.binary_cross_entropy(x.sigmoid(), t, weight.detach()),
            functional.binary_cross_entropy_with_logits(x, t, weight.detach()),
            functional.binary_cross_entropy_with_logits(x, t, pos_weight=positive.detach()),
        ]

    check(run, data(3, 4) * 3, (torch.rand(3, 4) < 0.5).float(), weight, positive)


def test_binary_cross_entropy_of_certainty() -> None:
    x, t = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    check(lambda x: functional.binary_cross_entropy(x, t.to(x.device), reduction="none"), x)


CLASS_SHAPES = [(5,), (6, 5), (2, 5, 3), (2, 5, 3, 2), (2, 5, 2, 2, 2), (0, 5)]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", CLASS_SHAPES, ids=str)
def test_cross_entropy(shape: tuple[int, ...], reduction: str) -> None:
    targets = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, 5, targets)
    if target.dim() and target.numel():
        target[0] = -100

    def run(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        logs = x.log_softmax(-1 if x.dim() == 1 else 1)
        kwargs: dict[str, Any] = {"reduction": reduction}
        return [
            functional.cross_entropy(x, target, **kwargs),
            functional.nll_loss(logs, target, weight.detach(), **kwargs),
            functional.nll_loss(logs, target.clamp(min=0), ignore_index=3, **kwargs),
            functional.cross_entropy(x, target, label_smoothing=0.1, **kwargs),
        ]

    check(run, data(*shape), target, torch.rand(5) + 0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_cross_entropy_dtypes(dtype: torch.dtype) -> None:
    target = torch.randint(0, 5, (6,))
    check(lambda x, t: functional.cross_entropy(x, t), data(6, 5, dtype=dtype), target)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_classes_as_bytes(reduction: str, weighted: bool) -> None:
    target = torch.tensor([0, 3, 4, 3], dtype=torch.uint8)
    weight = data(5).abs() if weighted else None

    def run(x: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        w = weight[0].detach() if weight else None
        return functional.cross_entropy(x, target, weight=w, ignore_index=3, reduction=reduction)

    check(run, data(4, 5), target, *([] if weight is None else [weight]))


def test_everything_ignored() -> None:
    target = torch.full((4,), -100)
    check(lambda x, t: functional.cross_entropy(x, t), data(4, 5), target)
    check(lambda x, t: functional.cross_entropy(x, t, reduction="sum"), data(4, 5), target)


def test_class_probabilities() -> None:
    check(lambda x, t: functional.cross_entropy(x, t.softmax(-1)), data(4, 5), data(4, 5))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (4, 5)], ids=str)
def test_margins(shape: tuple[int, ...], reduction: str) -> None:
    target = torch.randint(0, 5, shape[:-1])
    sets = torch.tensor([[1, 3, -1, 2, 0], [0, -1, 1, 1, 1], [4, 3, 2, 1, 0], [-1, 0, 0, 0, 0]])
    labels = sets if len(shape) == 2 else sets[0]

    def run(x: torch.Tensor, t: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> Any:
        w = weight.detach()
        return [
            functional.multi_margin_loss(x, t, reduction=reduction),
            functional.multi_margin_loss(x, t, 2, 0.7, w, reduction=reduction),
            functional.multilabel_margin_loss(x, labels, reduction=reduction),
        ]

    check(run, data(*shape), target, labels, torch.rand(5))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_composed(reduction: str) -> None:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, sign: torch.Tensor) -> Any:
        return [
            functional.hinge_embedding_loss(a, sign[:, None].expand_as(a), reduction=reduction),
            functional.margin_ranking_loss(a[:, 0], b[:, 0], sign, 0.1, reduction=reduction),
            functional.cosine_embedding_loss(a, b, sign, 0.1, reduction=reduction),
            functional.triplet_margin_loss(a, b, c, reduction=reduction),
            functional.multilabel_soft_margin_loss(a, (b > 0).float(), reduction=reduction),
            functional.gaussian_nll_loss(a, b, c.abs() + 0.1, reduction=reduction),
        ]

    sign = torch.tensor([1, -1, 1, -1])
    check(run, data(4, 5), data(4, 5), data(4, 5), sign)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ctc(reduction: str, zero_infinity: bool) -> None:
    inputs, lengths = torch.tensor([7, 5, 6, 2]), torch.tensor([3, 0, 2, 2])
    padded = torch.randint(1, 5, (4, 3))
    padded[2] = 2  # a repeated label needs a blank between
    padded[3] = 3  # so that two steps are too few
    joined = torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])
    options: dict[str, Any] = {"reduction": reduction, "zero_infinity": zero_infinity}

    def run(x: torch.Tensor, *targets: torch.Tensor) -> list[torch.Tensor]:
        logs = x.log_softmax(-1)
        pairs: list[Any] = [(inputs.tolist(), lengths.tolist()), (inputs, lengths)]
        return [functional.ctc_loss(logs, t, *pair, **options) for t in targets for pair in pairs]

    check(run, data(7, 4, 5), padded, joined)


def test_ctc_of_one_sample() -> None:
    ctc: Loss = functional.ctc_loss  # its annotations know lengths as tensors only

    def run(x: torch.Tensor, target: torch.Tensor) -> Any:
        return ctc(x.log_softmax(-1), target, [7], [3], blank=4)

    check(run, data(7, 5), torch.tensor([1, 3, 3]))
