"""In-place operators: aliasing, type promotion, autograd's checks and memory reuse."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from compare import assert_same

Change = Callable[[torch.Tensor], object]


def both(device: torch.device, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    cpu = torch.randn(*shape)
    return cpu, cpu.to(device)


CHANGES: dict[str, Change] = {
    "add": lambda x: x.add_(1.5),
    "add scaled": lambda x: x.add_(x.flip(0), alpha=-0.5),
    "sub": lambda x: x.sub_(2),
    "mul": lambda x: x.mul_(0.25),
    "div": lambda x: x.div_(3),
    "floor_divide": lambda x: x.floor_divide_(0.5),
    "pow": lambda x: x.pow_(2),
    "neg": lambda x: x.neg_(),
    "clamp": lambda x: x.clamp_(-0.5, 0.5),
    "sqrt": lambda x: x.abs_().sqrt_(),
    "exp": lambda x: x.exp_(),
    "relu": lambda x: x.relu_(),
    "sigmoid": lambda x: x.sigmoid_(),
    "lerp": lambda x: x.lerp_(torch.zeros_like(x), 0.3),
    "addcmul": lambda x: x.addcmul_(x.detach().clone(), x.detach().clone(), value=0.5),
    "addcdiv": lambda x: x.addcdiv_(torch.ones_like(x), torch.full_like(x, 3), value=2),
    "masked_fill": lambda x: x.masked_fill_(x > 0, -1),
    "tril": lambda x: x.tril_(),
    "cumsum": lambda x: x.cumsum_(1),
    "fill_diagonal": lambda x: x.fill_diagonal_(5),
    "index_fill": lambda x: x.index_fill_(1, torch.tensor([0, 2], device=x.device), 3),
    "index_add": lambda x: x.index_add_(
        0, torch.tensor([0, 0, 1], device=x.device), torch.ones(3, x.size(1), device=x.device)
    ),
    "scatter": lambda x: x.scatter_(1, torch.zeros(2, 1, dtype=torch.long, device=x.device), 8.0),
    "copy broadcast": lambda x: x.copy_(torch.arange(float(x.size(1)), device=x.device)),
    "transpose": lambda x: x.t_().mul_(2),
    "squeeze": lambda x: x.unsqueeze_(0).squeeze_(0).add_(1),
    "zero": lambda x: x.zero_(),
    "set item": lambda x: x.__setitem__((slice(None), 1), 4.0),
    "iadd on item": lambda x: x.__setitem__(0, x[0].add_(2)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen_by_every_view(name: str, device: torch.device, no_fallback: None) -> None:
    expected, actual = both(device, 3, 4)
    views = [x[:, ::2] for x in (expected, actual)]
    copies = [x.clone() for x in (expected, actual)]
    addresses = [x.data_ptr() for x in (expected, actual)]
    for x in (expected, actual):
        CHANGES[name](x)
    assert_same(actual, expected)
    assert_same(views[1], views[0], what="a view made before")
    assert_same(copies[1], copies[0], rtol=0, atol=0, what="a copy made before")
    assert [x.data_ptr() for x in (expected, actual)] == addresses


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        (torch.int64, lambda x: x.add_(1.5)),
        (torch.int64, lambda x: x.div_(2)),
        (torch.bool, lambda x: x.add_(2)),
        (torch.int32, lambda x: x.mul_(torch.ones(3, device=x.device))),
        (torch.float32, lambda x: x.add_(1j)),
        (torch.uint8, lambda x: x.sqrt_()),
        (torch.float32, lambda x: x.add_(torch.ones(4, device=x.device))),
        (torch.float32, lambda x: x.add_(torch.ones(2, 3, device=x.device))),
        (torch.float32, lambda x: x.copy_(torch.ones(2, 3, device=x.device))),
        (torch.float32, lambda x: x.index_fill_(0, torch.tensor([0.0], device=x.device), 1)),
        (torch.float32, lambda x: x.masked_fill_(torch.ones(3, device=x.device), 1)),
        (torch.bool, lambda x: x.neg_()),
        (
            torch.float32,
            lambda x: x.sub_(torch.ones(3, dtype=torch.bool, device=x.device), alpha=1j),
        ),
    ],
)
def test_errors_are_those_of_the_cpu(
    dtype: torch.dtype, change: Change, device: torch.device
) -> None:
    before = torch.ones(3).to(dtype)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as expected:
        change(before.clone())
    target = before.to(device)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as actual:
        change(target)
    assert actual.type is expected.type, str(actual.value)
    assert_same(target, before)


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        (torch.float32, lambda x: x.add_(torch.ones(3, dtype=torch.float64, device=x.device))),
        (torch.float32, lambda x: x.add_(torch.ones(3, dtype=torch.int64, device=x.device))),
        (torch.bfloat16, lambda x: x.mul_(torch.full((3,), 1.01, device=x.device))),
        (torch.int32, lambda x: x.add_(torch.tensor(3, dtype=torch.int64, device=x.device))),
        (torch.int64, lambda x: x.add_(True)),
        (torch.uint8, lambda x: x.sub_(2)),
        (torch.float16, lambda x: x.add_(torch.tensor(0.5, dtype=torch.float64))),
        (torch.complex64, lambda x: x.mul_(2.5)),
        (torch.int8, lambda x: x.mul_(100)),
    ],
)
def test_promoted_and_converted_back(
    dtype: torch.dtype, change: Change, device: torch.device
) -> None:
    expected = torch.tensor([1, 2, 3]).to(dtype)
    actual = expected.to(device)
    change(expected)
    change(actual)
    assert_same(actual, expected)


@pytest.mark.parametrize("channels_last", [False, True])
def test_keeps_its_own_strides(channels_last: bool, device: torch.device) -> None:
    expected, actual = both(device, 2, 3, 4, 5)
    if channels_last:
        expected = expected.to(memory_format=torch.channels_last)
        actual = actual.to(memory_format=torch.channels_last)
    other = torch.randn(2, 3, 4, 5)
    expected.mul_(other)
    actual.mul_(other.to(device))
    assert_same(actual, expected)


# --- Memory reuse ------------------------------------------------------------------------------


def test_a_copy_keeps_the_old_value(device: torch.device) -> None:
    expected, x = both(device, 4, 5)
    copies = [x.clone(), x.detach().clone(), x.contiguous().clone(), torch.empty_like(x).copy_(x)]
    for step in range(3):
        x.add_(step + 1)
    for copy in copies:
        assert_same(copy, expected)
    copies[0].mul_(3)
    assert_same(copies[1], expected)
    assert_same(copies[0], expected * 3)
    assert_same(x, expected + 1 + 2 + 3)


def test_results_that_share_memory_with_an_input(device: torch.device) -> None:
    # Operators that give back their input's values unchanged must not be changed through it.
    expected, x = both(device, 4, 5)
    results = [x + 0, x * 1, x.relu() - (-x).relu(), x.repeat(1, 1), torch.cat([x]), x.to(x.dtype)]
    results[-1] = results[-1].clone()
    x.zero_()
    for result in results:
        assert_same(result, expected)


def test_loop(device: torch.device) -> None:
    expected, x = both(device, 8)
    total = torch.zeros(8, device=device)
    wanted = torch.zeros(8)
    for step in range(50):
        x.mul_(0.9).add_(step / 10)
        total += x
        expected.mul_(0.9).add_(step / 10)
        wanted += expected
    assert_same(x, expected)
    assert_same(total, wanted)


def test_same_tensor_twice(device: torch.device) -> None:
    expected, x = both(device, 3, 3)
    for t in (expected, x):
        t.add_(t).mul_(t.t().contiguous()).sub_(t.clone(), alpha=0.5)
    assert_same(x, expected)


def test_views_outlive_their_base(device: torch.device) -> None:
    expected, x = both(device, 6, 4)
    view, wanted = x[1::2].t(), expected[1::2].t()
    del x
    view.mul_(2)
    wanted.mul_(2)
    assert_same(view.clone(), wanted.clone())


def test_detached_and_data_share(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    x.data.add_(1)
    assert_same(x.detach(), torch.full((3,), 2.0))
    with torch.no_grad():
        x.mul_(2)
    assert_same(x.detach(), torch.full((3,), 4.0))
    x.data = torch.zeros(5, device=device)
    assert x.shape == (5,)


def test_read_from_many_threads(device: torch.device) -> None:
    expected, x = both(device, 32, 32)
    results: list[torch.Tensor | None] = [None] * 8

    def work(index: int) -> None:
        mine = x.clone()
        for _ in range(20):
            mine.add_(x)
        results[index] = mine + x.sum()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert result is not None
        assert_same(result, expected * 21 + expected.sum(), rtol=1e-4, atol=1e-4)


def test_each_thread_changes_its_own(device: torch.device) -> None:
    base = torch.zeros(8, 16, device=device)
    rows = [row.clone() for row in base]

    def work(index: int) -> None:
        for step in range(30):
            rows[index].add_(step * index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(rows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, row in enumerate(rows):
        assert_same(row, torch.full((16,), float(sum(range(30)) * index)))
    assert_same(base, torch.zeros(8, 16))


# --- Autograd ----------------------------------------------------------------------------------


def test_backward_refuses_a_changed_value(device: torch.device) -> None:
    x = torch.rand(3, device=device, requires_grad=True)
    y = x.exp()
    z = y.sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_refuses_a_leaf_and_an_expanded_view(device: torch.device) -> None:
    x = torch.rand(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
        (x * 1).unbind()[0].add_(1)


def test_gradients_through_changes(device: torch.device) -> None:
    weight = torch.rand(4, 4)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 1].mul_(3)
        y.relu_()
        y = y + 0
        y[0].copy_(w[0])
        y[1:].add_(w[1:])
        z = y.t().contiguous()
        z[::2].sin_()
        z[z > 0.5] = 0
        return z.sum()

    grads = []
    for place in ("cpu", device):
        x = (weight.to(place) - 0.5).requires_grad_()
        w = weight.to(place, copy=True).requires_grad_()
        loss(x, w).backward()
        grads.append((x.grad, w.grad))
    for expected, actual in zip(*grads, strict=True):
        assert expected is not None and actual is not None
        assert_same(actual, expected)


def test_retained_graph_and_accumulation(device: torch.device) -> None:
    start = torch.rand(3, 3)
    grads = []
    for place in ("cpu", device):
        x = start.to(place, copy=True).requires_grad_()
        y = (x @ x).tanh().sum()
        y.backward(retain_graph=True)
        first = x.grad
        assert first is not None
        kept = first.clone()
        y.backward()
        grads.append((kept, x.grad))
    for expected, actual in zip(*grads, strict=True):
        assert expected is not None and actual is not None
        assert_same(actual, expected, rtol=1e-2, atol=1e-2)


def test_version_counter(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    before = x._version
    x.add_(1)
    x[0] = 2
    assert x._version == before + 2


def test_inference_mode(device: torch.device) -> None:
    with torch.inference_mode():
        x = torch.ones(3, device=device)
        x.add_(1)
        x[1] = 7
        y = x[1:]
        y.mul_(2)
    assert x.cpu().tolist() == [2, 14, 4]
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        x.add_(1)
