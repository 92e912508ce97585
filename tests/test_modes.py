"""Eager modes: what sets them, whom they hold for, what they change."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import subprocess_python
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_tpu import tpu
from torch_tpu.tpu import EagerMode

STRICT = EagerMode.DEFER_NEVER
DEBUG = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING


@pytest.fixture(autouse=True)
def same_mode_afterwards() -> Iterator[None]:
    """Begins with strict, and puts the default mode back."""
    before = tpu.eager_mode()
    tpu.set_eager_mode(STRICT)
    yield
    tpu.set_eager_mode(before)


class _SeesMode(torch.autograd.Function):
    """Notes the mode that holds while its backward runs, and on which thread."""

    seen: list[tuple[EagerMode, bool]] = []

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        main = threading.current_thread() is threading.main_thread()
        _SeesMode.seen.append((tpu.eager_mode(), main))
        return grad


def test_as_function_and_as_context() -> None:
    tpu.set_eager_mode(STRICT)
    assert tpu.eager_mode() is STRICT
    with tpu.set_eager_mode(DEBUG):
        assert tpu.eager_mode() is DEBUG
        with tpu.set_eager_mode(STRICT):
            assert tpu.eager_mode() is STRICT
        assert tpu.eager_mode() is DEBUG
    assert tpu.eager_mode() is STRICT
    tpu.set_eager_mode(DEBUG)
    assert tpu.eager_mode() is DEBUG


def test_context_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), tpu.set_eager_mode(DEBUG):
        raise KeyError
    assert tpu.eager_mode() is STRICT


def test_other_threads_have_the_default() -> None:
    seen = []
    with tpu.set_eager_mode(DEBUG):
        thread = threading.Thread(target=lambda: seen.append(tpu.eager_mode()))
        thread.start()
        thread.join()
    tpu.set_eager_mode(DEBUG)
    thread = threading.Thread(target=lambda: seen.append(tpu.eager_mode()))
    thread.start()
    thread.join()
    assert seen == [STRICT, DEBUG]


@pytest.mark.parametrize("bad", [1, "DEFER_NEVER", None])
def test_what_is_no_mode_is_refused(bad: object) -> None:
    with pytest.raises(TypeError, match=r"set_eager_mode: expected one of .*DEFER_NEVER"):
        tpu.set_eager_mode(bad)  # type: ignore[arg-type]
    assert tpu.eager_mode() is STRICT


def test_backward_has_the_mode_of_its_caller(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    _SeesMode.seen.clear()
    loss = _SeesMode.apply(x).sum()
    with tpu.set_eager_mode(DEBUG):
        loss.backward()
    with tpu.set_eager_mode(DEBUG):
        loss = _SeesMode.apply(x).sum()
    loss.backward()
    # The device's backward runs on a thread of its own, or the first line would show nothing.
    assert _SeesMode.seen == [(DEBUG, False), (STRICT, False)]


def test_backward_through_checkpoints_has_the_mode_too(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    modes = []

    def body(t: torch.Tensor) -> torch.Tensor:
        modes.append(tpu.eager_mode())
        return t.sin()

    out = checkpoint(body, x, use_reentrant=False)
    with tpu.set_eager_mode(DEBUG):
        out.sum().backward()
    assert modes == [STRICT, DEBUG]


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "DEFER_NEVER"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "0", "TORCH_TPU_DEFER_AND_FUSE": ""}, "DEFER_NEVER"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "1"}, "DEFER_NEVER_AND_LAUNCH_BLOCKING"),
        ({"TORCH_TPU_DEFER_AND_FUSE": "1"}, "DEFER_AND_FUSE"),
    ],
)
def test_environment(variables: dict[str, str], mode: str) -> None:
    unset = {"TORCH_TPU_LAUNCH_BLOCKING": "", "TORCH_TPU_DEFER_AND_FUSE": ""}
    code = "import torch; print(torch.tpu.eager_mode().name)"
    assert (
        subprocess_python.run_quietly(code, timeout=300, **{**unset, **variables}).strip() == mode
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"TORCH_TPU_LAUNCH_BLOCKING": "yes"},
            "ValueError: TORCH_TPU_LAUNCH_BLOCKING: expected 0 or 1, got 'yes'",
        ),
        (
            {"TORCH_TPU_LAUNCH_BLOCKING": "", "TORCH_TPU_DEFER_AND_FUSE": "2"},
            "ValueError: TORCH_TPU_DEFER_AND_FUSE: expected 0 or 1, got '2'",
        ),
        (
            {"TORCH_TPU_LAUNCH_BLOCKING": "1", "TORCH_TPU_DEFER_AND_FUSE": "1"},
            "ValueError: TORCH_TPU_LAUNCH_BLOCKING and TORCH_TPU_DEFER_AND_FUSE: expected at most",
        ),
    ],
)
def test_environment_that_makes_no_sense(variables: dict[str, str], message: str) -> None:
    code = "import torch; torch.ones(2, device='tpu') + 1"
    assert message in subprocess_python.run_failing(code, timeout=300, **variables)


class _Tiny(nn.Module):
    """A bit of everything that a training step has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.block(self.embedding(tokens))
        x = self.norm(self.convolution(x.transpose(1, 2)).relu()).transpose(1, 2)
        return self.head(x)


def _train(device: torch.device) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = _Tiny().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(50, (4, 12), generator=torch.Generator().manual_seed(1)).to(device)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [t.cpu() for t in (*losses, *model.state_dict().values())]


def test_debug_training_is_bitwise_equal_to_strict(device: torch.device) -> None:
    strict = _train(device)
    with tpu.set_eager_mode(DEBUG):
        debug = _train(device)
    with tpu.debug.check_nan():
        checked = _train(device)
    for a, b, c in zip(strict, debug, checked, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def _operators(device: torch.device) -> list[torch.Tensor]:
    torch.manual_seed(3)
    x = torch.randn(7, 5, device=device)
    y = x.t()[1:4].clone()
    y.mul_(2).add_(x.t()[:3], alpha=0.5)
    y[:, ::2] = 1
    z = torch.softmax(y, 1) @ torch.rand(7, 4, device=device)
    mask = z > z.mean()
    image = torch.randn(2, 3, 8, 8, device=device)
    heads = torch.randn(2, 2, 6, 4, device=device)
    index = torch.randint(7, (9,), device=device)
    halves = torch._foreach_mul([x, y, z], 0.5)
    results = [
        *(x, y, z, mask, *halves),
        *(z[mask], z.sort(1)[0], z.cumsum(0), z.nonzero(), z.std(0), torch.linalg.qr(x)[1]),
        *(x[index], x.index_add(0, index, torch.ones(9, 5, device=device)), x.logsumexp(1)),
        nn.functional.conv2d(image, torch.randn(4, 3, 3, 3, device=device), padding=1),
        nn.functional.max_pool2d(image, 2),
        nn.functional.interpolate(image, scale_factor=2, mode="bilinear"),
        nn.functional.layer_norm(x, (5,)),
        nn.functional.dropout(x, 0.5),
        nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        torch.einsum("ij,kj->ik", x, x),
        torch.fft.rfft(x).abs(),
        x.to(torch.bfloat16) @ x.t().to(torch.bfloat16),
        torch.cdist(x, x),
        torch.multinomial(x.softmax(1), 3),
    ]
    return [t.cpu() for t in results]


def test_operators_are_bitwise_equal_too(device: torch.device) -> None:
    strict = _operators(device)
    with tpu.set_eager_mode(DEBUG):
        debug = _operators(device)
    for a, b in zip(strict, debug, strict=True):
        assert torch.equal(a, b)


def test_debug_mode_waits(device: torch.device) -> None:
    """After each operator its result is there: the stream has nothing left to do."""
    x = torch.randn(256, 256, device=device)
    with tpu.set_eager_mode(DEBUG):
        for _ in range(20):
            x = (x @ x).tanh()
            assert tpu.current_stream().query()
        loaded = torch.randn(512, 512).to(device)
        assert tpu.current_stream().query()
    assert loaded.shape == (512, 512)
