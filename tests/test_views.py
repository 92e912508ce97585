"""Reading and writing through views, against the CPU.

A view is described once, as a function of its base, and applied to a CPU tensor and a device
tensor. Reading checks the view's values; writing checks the base, so that aliasing and the
elements around the view are seen too.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from compare import assert_same, dispatch_stats

View = Callable[[torch.Tensor], torch.Tensor]


def base_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Distinct small numbers of any dtype."""
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).reshape(shape)
    if dtype.is_complex:
        return (
            torch.complex(torch.arange(count) + 1.0, -torch.arange(count) / 2)
            .to(dtype)
            .reshape(shape)
        )
    return (torch.arange(count) % 100).to(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with NaNs (of reinterpreted integers) made comparable."""
    return tensor.nan_to_num() if tensor.is_floating_point() else tensor


def assert_reads_same(view: View, base: torch.Tensor, device: torch.device) -> None:
    """Asserts the view's metadata, and its values read by a copy, an op and a transfer."""
    expected, actual = view(base), view(base.to(device))
    assert actual.stride() == expected.stride()
    assert actual.storage_offset() == expected.storage_offset()
    assert_same(bits(actual.clone()), bits(expected.clone()), rtol=0, atol=0, what="clone")
    assert_same(bits(actual.contiguous()), bits(expected.contiguous()), what="contiguous")
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


VIEWS: dict[str, tuple[tuple[int, ...], View]] = {
    "identity": ((2, 3), lambda x: x),
    "scalar": ((), lambda x: x.view(1, 1)),
    "empty": ((0, 3), lambda x: x.t()),
    "select": ((4, 5), lambda x: x[2]),
    "select last dim": ((4, 5), lambda x: x[:, -1]),
    "select to 0-d": ((4, 5), lambda x: x[1, 3]),
    "slice": ((6, 5), lambda x: x[1:4]),
    "slice to nothing": ((6, 5), lambda x: x[3:3]),
    "slice with step": ((7, 5), lambda x: x[1::3]),
    "slice columns with step": ((7, 5), lambda x: x[:, ::2]),
    "slice both with steps": ((7, 6), lambda x: x[1:6:2, 1::3]),
    "transpose": ((3, 5), lambda x: x.t()),
    "permute": ((2, 3, 4), lambda x: x.permute(2, 0, 1)),
    "permute of slice": ((4, 5, 6), lambda x: x[1:3, ::2].permute(2, 0, 1)),
    "slice of permute": ((4, 5, 6), lambda x: x.permute(2, 0, 1)[1:5:2, 1:]),
    "expand": ((3, 1), lambda x: x.expand(3, 4)),
    "expand new dims": ((3,), lambda x: x.expand(2, 4, 3)),
    "expand of slice": ((3, 4), lambda x: x[:, 1:2].expand(2, 3, 5)),
    "expand scalar": ((), lambda x: x.expand(2, 3)),
    "unsqueeze": ((3, 4), lambda x: x.unsqueeze(1)),
    "squeeze": ((3, 1, 4), lambda x: x.squeeze(1)),
    "unfold": ((9,), lambda x: x.unfold(0, 3, 2)),
    "unfold overlapping": ((3, 6), lambda x: x.unfold(1, 4, 1)),
    "unfold apart": ((3, 9), lambda x: x.unfold(1, 2, 3)),
    "diagonal": ((4, 4), lambda x: x.diagonal()),
    "diagonal above": ((3, 5), lambda x: x.diagonal(2)),
    "diagonal below": ((2, 5, 4), lambda x: x.diagonal(-1, 1, 2)),
    "diagonal of diagonal": ((3, 3, 3), lambda x: x.diagonal().diagonal()),
    "narrow": ((5, 6), lambda x: x.narrow(1, 2, 3)),
    "view": ((4, 6), lambda x: x.view(2, 2, 3, 2)),
    "view across dims": ((4, 6), lambda x: x.view(8, 3)),
    "view of rows": ((4, 6), lambda x: x[1:3].view(12)),
    "flatten slice": ((4, 6), lambda x: x.view(-1)[5:17:4]),
    "reshape needs copy": ((4, 6), lambda x: x.t().reshape(-1)),
    "split": ((7, 2), lambda x: x.split(3)[2]),
    "chunk": ((2, 8), lambda x: x.chunk(3, 1)[1]),
    "unbind": ((3, 4), lambda x: x.unbind(1)[2]),
    "channels last": ((2, 3, 4, 5), lambda x: x.to(memory_format=torch.channels_last)[1:, :, ::2]),
    "movedim": ((2, 3, 4), lambda x: x.movedim(0, -1)),
    "as_strided box": ((30,), lambda x: x.as_strided((2, 3), (12, 2), 5)),
    "as_strided gaps": ((30,), lambda x: x.as_strided((3, 4), (7, 2), 1)),
    "as_strided overlapping": ((30,), lambda x: x.as_strided((5, 6), (2, 3), 2)),
    "as_strided equal strides": ((16,), lambda x: x.as_strided((4, 4), (2, 2), 1)),
    "as_strided transposed": ((5, 6), lambda x: x.as_strided((6, 5), (1, 6))),
    "as_strided broadcast": ((5, 6), lambda x: x.as_strided((3, 4, 2), (6, 0, 1), 3)),
    "as_strided 0-d": ((5, 6), lambda x: x.as_strided((), (), 17)),
    "as_strided nothing": ((5, 6), lambda x: x.as_strided((2, 0), (1, 1), 4)),
    "as_strided across rows": ((4, 5), lambda x: x.as_strided((3, 4), (4, 1), 2)),
    "as_strided large step": ((4, 5), lambda x: x.as_strided((3,), (9,), 1)),
    "as_strided beyond view": ((4, 5), lambda x: x[2].as_strided((2, 2), (5, 1), 0)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_read(name: str, device: torch.device) -> None:
    shape, view = VIEWS[name]
    assert_reads_same(view, base_of(shape), device)


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["permute of slice", "as_strided overlapping", "expand of slice"])
def test_read_dtypes(name: str, dtype: torch.dtype, device: torch.device) -> None:
    shape, view = VIEWS[name]
    assert_reads_same(view, base_of(shape, dtype), device)


REINTERPRETED: dict[str, tuple[torch.dtype, View]] = {
    "same width": (torch.float32, lambda x: x.view(torch.int32)),
    "narrower": (torch.float32, lambda x: x.view(torch.int16)),
    "bytes": (torch.int64, lambda x: x.view(torch.uint8)),
    "wider": (torch.int16, lambda x: x.view(torch.int64)),
    "slice of narrower": (torch.float32, lambda x: x.view(torch.uint8)[:, 3::4]),
    "back and forth": (torch.float32, lambda x: x.view(torch.uint8)[1:].view(torch.float32)),
    "bool to bytes": (torch.bool, lambda x: x.view(torch.uint8)),
    "real view": (torch.complex64, lambda x: torch.view_as_real(x)[1:]),
    "real part": (torch.complex64, lambda x: x.real),
    "imaginary part": (torch.complex64, lambda x: x.imag[:, ::2]),
    "imaginary part, double": (torch.complex128, lambda x: x.t().imag),
    "complex view": (torch.float32, lambda x: torch.view_as_complex(x.view(-1, 2))),
    "complex as float32": (torch.complex64, lambda x: x.view(torch.float32)),
}


@pytest.mark.parametrize("name", REINTERPRETED)
def test_read_reinterpreted(name: str, device: torch.device) -> None:
    dtype, view = REINTERPRETED[name]
    assert_reads_same(view, base_of((4, 8), dtype), device)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.conj(),
        lambda x: x.conj()[1:, ::2],
        lambda x: x.conj().t(),
        lambda x: x.conj().imag,
        lambda x: x.conj().conj(),
        lambda x: torch.view_as_real(x.conj().resolve_conj()),
    ],
    ids=["conj", "slice", "transpose", "imag", "twice", "resolved"],
)
def test_conjugate_views(view: View, device: torch.device) -> None:
    base = base_of((3, 4), torch.complex64)
    expected, actual = view(base), view(base.to(device))
    assert (actual.is_conj(), actual.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert_same(actual + actual, expected + expected)
    assert_same(actual.clone(), expected.clone())
    torch.testing.assert_close(actual.cpu().resolve_conj(), expected.resolve_conj())


def test_writes_through_conjugate_views(device: torch.device) -> None:
    base = base_of((3, 4), torch.complex64)
    moved = base.to(device)
    source = base_of((4,), torch.complex64) * 1j
    for target in (base, moved):
        other = source.to(target.device)
        target.conj()[0].copy_(other)
        target[1].copy_(other.conj())
        target.conj()[2].mul_(2j)
        target.conj().imag[0, :2].fill_(7)
    assert_same(moved, base)


# --- Writing ----------------------------------------------------------------------------------


def fill(x: torch.Tensor) -> None:
    x.fill_(1)


def zero(x: torch.Tensor) -> None:
    x.zero_()


def copy(x: torch.Tensor) -> None:
    x.copy_((base_of(tuple(x.shape), torch.int64) * 3 + 1).to(x.device).to(x.dtype))


def copy_from_host(x: torch.Tensor) -> None:
    x.copy_(base_of(tuple(x.shape), torch.int64) * 5 + 2)


def copy_converted(x: torch.Tensor) -> None:
    x.copy_((base_of(tuple(x.shape), torch.int32) * 3 + 1).to(x.device))


def multiply(x: torch.Tensor) -> None:
    x.mul_(2)


def add_itself(x: torch.Tensor) -> None:
    x.add_(x)


def masked_fill(x: torch.Tensor) -> None:
    x.masked_fill_((torch.arange(x.numel()).reshape(x.shape) % 2 == 0).to(x.device), 9)


def set_element(x: torch.Tensor) -> None:
    if x.numel():
        x[(0,) * x.dim()] = 77


WRITES = [
    fill,
    zero,
    copy,
    copy_from_host,
    copy_converted,
    multiply,
    add_itself,
    masked_fill,
    set_element,
]
# Several elements in one place, or a copy instead of a view.
NOT_WRITABLE = {
    "expand",
    "expand new dims",
    "expand of slice",
    "expand scalar",
    "unfold overlapping",
    "unfold",
    "reshape needs copy",
    "as_strided overlapping",
    "as_strided equal strides",
    "as_strided broadcast",
}


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in NOT_WRITABLE])
def test_write(name: str, device: torch.device) -> None:
    shape, view = VIEWS[name]
    # Half of the writes for each view keep the number of programs modest.
    start = list(VIEWS).index(name) % 2
    for write in WRITES[start::2]:
        expected = base_of(shape)
        actual = expected.to(device)
        other = actual.view(-1)  # sees what the base sees
        write(view(expected))
        write(view(actual))
        assert_same(actual, expected, rtol=0, atol=0, what=write.__name__)
        assert_same(other, expected.view(-1), rtol=0, atol=0, what=f"{write.__name__}, other view")


@pytest.mark.parametrize("name", REINTERPRETED)
def test_write_reinterpreted(name: str, device: torch.device) -> None:
    dtype, view = REINTERPRETED[name]
    for write in (copy, fill):
        expected = base_of((4, 8), dtype)
        actual = expected.to(device)
        write(view(expected))
        write(view(actual))
        assert_same(bits(actual.clone()), bits(expected.clone()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["expand", "expand scalar", "as_strided broadcast"])
def test_refuses_to_write_where_elements_share_a_place(name: str, device: torch.device) -> None:
    shape, view = VIEWS[name]
    target = view(base_of(shape).to(device))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        target.add_(1)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        target.copy_(torch.ones(target.shape, device=device))


def test_fills_where_elements_share_a_place(device: torch.device) -> None:
    expected = base_of((3, 4))
    actual = expected.to(device)
    for base in (expected, actual):
        base[:, 1:2].expand(3, 5).fill_(7)
        base.as_strided((3, 3), (2, 2), 3).zero_()
    assert_same(actual, expected)


def test_refuses_partly_overlapping_operands(device: torch.device) -> None:
    for base in (base_of((8,)), base_of((8,)).to(device)):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            base[1:].add_(base[:-1])
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            base[1:].copy_(base[:-1])
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            torch.add(base[:-1], 1, out=base[1:])


def test_operands_that_overlap_in_full_or_not_at_all(device: torch.device) -> None:
    expected = base_of((4, 6))
    actual = expected.to(device)
    for base in (expected, actual):
        base[0].add_(base[1])
        base[:, ::2].mul_(base[:, 1::2])
        base[2:].view(-1).sub_(base[2:].view(-1))
        base[0].copy_(base[3])
        base.t()[1].copy_(base[:, 2])
    assert_same(actual, expected)


# --- Tensors that were not written as a whole --------------------------------------------------


def test_writes_to_parts_of_an_empty_tensor(device: torch.device) -> None:
    x = torch.empty(4, 6, device=device)
    x[0].fill_(1)
    x[1:3].copy_(torch.arange(12.0).view(2, 6))
    x[3, ::2] = 5
    x[3, 1::2] = 6
    expected = torch.empty(4, 6)
    expected[0] = 1
    expected[1:3] = torch.arange(12.0).view(2, 6)
    expected[3, ::2] = 5
    expected[3, 1::2] = 6
    assert_same(x, expected)


def test_empty_permuted(device: torch.device) -> None:
    for layout in (torch.channels_last, torch.contiguous_format):
        x = torch.empty(2, 3, 4, 5, device=device, memory_format=layout)
        source = base_of((2, 3, 4, 5))
        x.copy_(source)
        expected = torch.empty(2, 3, 4, 5, memory_format=layout).copy_(source)
        assert_same(x, expected)
        x[:, 1].neg_()
        expected[:, 1].neg_()
        assert_same(x, expected)


def test_resize_keeps_elements(device: torch.device) -> None:
    expected = base_of((2, 3))
    actual = expected.to(device)
    for x in (expected, actual):
        x.resize_(4)
    assert_same(actual, expected)
    for x in (expected, actual):
        x.resize_(2, 4)
        x[1, 2:] = 0
    assert_same(actual, expected)


def test_set_shares_storage(device: torch.device) -> None:
    base = base_of((3, 4)).to(device)
    alias = torch.empty(0, device=device).set_(base.untyped_storage(), 2, (2, 3), (4, 1))
    alias.fill_(-1)
    expected = base_of((3, 4))
    expected.as_strided((2, 3), (4, 1), 2).fill_(-1)
    assert_same(base, expected)
    alias.set_(base)  # type: ignore[call-overload]
    assert_same(alias, expected)


def test_storage_freed_and_refilled(device: torch.device) -> None:
    # Fully sharded training frees a parameter's memory and fills it again under the same tensors.
    x = base_of((3, 4)).to(device)
    view = x[1:]
    size = x.untyped_storage().size()
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().size() == 0
    x.untyped_storage().resize_(size)
    x.copy_(base_of((3, 4)) + 1)
    assert_same(view, (base_of((3, 4)) + 1)[1:])


# --- Chains of views ----------------------------------------------------------------------------


def random_step(x: torch.Tensor, rng: random.Random) -> View:
    """A random view op that fits `x`."""
    dims = x.dim()
    steps: list[View] = [lambda t: t.unsqueeze(0)]
    if dims:
        d = rng.randrange(dims)
        n = x.size(d)
        order = rng.sample(range(dims), dims)
        steps.append(lambda t: t.permute(order))
        if n:
            start = rng.randrange(n)
            stop = rng.randrange(start, n + 1)
            step = rng.choice([1, 2, 3])
            window = rng.randrange(1, n + 1)
            steps.append(lambda t: t.select(d, start))
            steps.append(lambda t: t[(slice(None),) * d + (slice(start, stop, step),)])
            steps.append(lambda t: t.unfold(d, window, window))
        if n == 1:
            steps.append(lambda t: t.squeeze(d))
        if n % 2 == 0 and n:
            steps.append(lambda t: t.unflatten(d, (2, n // 2)))
    if dims > 1:
        first, second = rng.sample(range(dims), 2)
        offset = rng.choice([-1, 0, 1])
        steps.append(lambda t: t.diagonal(offset, first, second))
    if x.is_contiguous():
        steps.append(lambda t: t.view(-1))
        if x.dtype is torch.float32:
            steps.append(lambda t: t.view(-1).view(torch.int32))
    return rng.choice(steps)


@pytest.mark.parametrize("seed", range(60))
def test_chain(seed: int, device: torch.device) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(5)))
    expected = base_of(shape, rng.choice([torch.float32, torch.int64, torch.bfloat16]))
    actual = expected.to(device)
    chain: list[View] = []
    view = expected
    for _ in range(rng.randrange(1, 5)):
        chain.append(random_step(view, rng))
        view = chain[-1](view)
    device_view = actual
    for step in chain:
        device_view = step(device_view)
    assert device_view.stride() == view.stride()
    assert_same(device_view.clone(), view.clone(), rtol=0, atol=0, what="read")
    write = rng.choice(WRITES)
    write(view)
    write(device_view)
    assert_same(actual, expected, rtol=0, atol=0, what=f"{write.__name__} through the view")
    assert_same(device_view.clone(), view.clone(), rtol=0, atol=0, what="read after write")


# --- Errors are PyTorch's -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t().view(-1),
        lambda x: x.view(5, 5),
        lambda x: x.as_strided((4, 6), (6, 2)),
        lambda x: x.as_strided((2,), (1,), -1),
        lambda x: x.select(0, 4),
        lambda x: x.narrow(0, 3, 2),
        lambda x: x.expand(4, 7),
        lambda x: x[:, 1:].view(torch.int64),
        lambda x: torch.view_as_complex(x),
        lambda x: x.unfold(0, 5, 1),
        lambda x: x.diagonal(0, 1, 1),
        lambda x: x.permute(0, 0),
    ],
)
def test_errors(view: View, device: torch.device) -> None:
    base = base_of((4, 6))
    with pytest.raises((RuntimeError, IndexError)) as expected:
        view(base)
    with pytest.raises((RuntimeError, IndexError)) as actual:
        view(base.to(device))
    assert actual.type is expected.type
    assert str(actual.value) == str(expected.value)


# --- Views that move ----------------------------------------------------------------------------

MOVING: dict[str, tuple[tuple[int, ...], int, Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "rows": ((12, 5), 12, lambda x, i: x[i]),
    "columns": ((5, 12), 12, lambda x, i: x[:, i]),
    "elements": ((4, 3), 12, lambda x, i: x[i // 3, i % 3]),
    "windows": ((12, 5), 10, lambda x, i: x[i : i + 3]),
    "windows with steps": ((14, 5), 10, lambda x, i: x[i : i + 5 : 2, ::2]),
    "middle dim": ((3, 10, 2), 10, lambda x, i: x[:, i : i + 1]),
    "transposed": ((10, 4), 10, lambda x, i: x.t()[:, i]),
    "expanded": ((10, 4), 10, lambda x, i: x[i].expand(3, 4)),
    "one dim of two": ((4, 9, 2), 12, lambda x, i: x[i % 4, i // 4 * 3 : i // 4 * 3 + 2]),
    "over the edge": ((4, 5), 14, lambda x, i: x.as_strided((6,), (1,), i)),
    "diagonals": ((8, 3), 6, lambda x, i: x[i : i + 3].diagonal()),
}


def compiled() -> int:
    now = dispatch_stats()
    return int(now["compiles"] + now["loads"])


# Which leave the base's rows: a program each.
NO_BOXES = {"over the edge", "diagonals"}


@pytest.mark.parametrize("name", MOVING)
def test_one_program_serves_every_place(name: str, device: torch.device, no_fallback: None) -> None:
    shape, places, view = MOVING[name]
    expected = base_of(shape)
    actual = expected.to(device)
    before = compiled()
    for i in range(places):
        assert_same(view(actual, i) * 1.5, view(expected, i) * 1.5, what=f"read at {i}")
    if name not in NO_BOXES:
        assert compiled() - before <= 5
    if name == "expanded":
        return
    before = compiled()
    for i in range(places):
        view(expected, i).mul_(-1.25)
        view(actual, i).mul_(-1.25)
        assert_same(actual, expected, what=f"written at {i}")
    if name not in NO_BOXES:
        assert compiled() - before <= 5


def test_recurrence_over_slices(device: torch.device) -> None:
    x = torch.randn(3, 20, 4)
    results = []
    for place in ("cpu", device):
        inputs = x.to(place, copy=True).requires_grad_()
        state = torch.zeros(3, 4, device=place)
        outputs = torch.zeros(3, 20, 4, device=place)
        for i in range(20):
            state = torch.tanh(inputs[:, i] + state)
            outputs[:, i] = state
        outputs[:, 5:].square().sum().backward()
        results.append((outputs.detach(), inputs.grad))
    for want, got in zip(*results, strict=True):
        assert want is not None and got is not None
        assert_same(got, want, rtol=1e-5, atol=1e-5)


def test_several_moving_views_in_a_call(device: torch.device) -> None:
    expected = base_of((8, 8))
    actual = expected.to(device)
    for i in range(7):
        for x in (expected, actual):
            other = x.clone()
            torch.add(other[i], other[:, i + 1], out=x[7 - i])
            x[i, 1:3].addcmul_(other[i + 1, :2], other[2:4, i], value=0.5)
        assert_same(actual, expected, what=f"step {i}")


def test_overlap_is_noticed_wherever_views_move(device: torch.device) -> None:
    expected = base_of((12, 2))
    actual = expected.to(device)
    for i in range(2, 8):
        for x in (expected, actual):
            x[i : i + 3].copy_(x[i - 2 : i - 1])
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                x[i : i + 3].copy_(x[i + 1 : i + 4])
        assert_same(actual, expected)
