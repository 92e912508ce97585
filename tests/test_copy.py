"""Copies: to the device, back, on it, between dtypes, layouts and devices."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import subprocess_python
import torch
from compare import assert_same
from dtypes import PROMOTED

DTYPES = [
    *PROMOTED,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 7).reshape(shape).to(torch.float32).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype: torch.dtype, device: torch.device) -> None:
    x = numbers(dtype, 3, 4)
    y = x.to(device)
    assert y.device.type == device.type
    assert y.dtype == dtype
    assert_same(
        y.view(torch.uint8) if dtype.itemsize == 1 else y,
        x.view(torch.uint8) if dtype.itemsize == 1 else x,
        rtol=0,
        atol=0,
    )
    assert torch.equal(y.cpu().view(torch.uint8), x.view(torch.uint8))


SPECIAL = [0.0, -0.0, 1.5, -1.5, 2.7, -2.7, 100.0, float("inf"), float("-inf"), float("nan")]


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("source", DTYPES[:12], ids=str)
@pytest.mark.parametrize("target", DTYPES[:12], ids=str)
def test_conversion(source: torch.dtype, target: torch.dtype, device: torch.device) -> None:
    if source.is_floating_point and (target.is_floating_point or target.is_complex):
        x = torch.tensor(SPECIAL, dtype=torch.float64).to(source)
        x = torch.cat([x, x.new_tensor([65504.0, 1e-3, 3.14159])])
    elif source.is_floating_point or source.is_complex:
        low = 0 if target is torch.uint8 else -2.7
        x = torch.tensor([0.0, 1.5, low, 2.7, 100.0]).to(source)
    elif source is torch.bool:
        x = torch.tensor([True, False])
    elif source is torch.uint8:
        x = torch.tensor([0, 1, 127, 128, 255], dtype=source)
    else:
        x = torch.tensor([0, 1, -1, 127, -128, 300, 70000]).to(source)
    expected = x.to(target)
    assert_same(x.to(device).to(target), expected, rtol=0, atol=0)
    assert_same(x.to(device, dtype=target), expected, rtol=0, atol=0)
    assert_same(torch.empty(x.shape, dtype=target, device=device).copy_(x), expected, 0, 0)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "slice": lambda x: x[1:, 2:],
    "steps": lambda x: x[::2, ::3],
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "expanded": lambda x: x[:, :1].expand(4, 6),
    "overlapping": lambda x: x.unfold(1, 3, 1),
    "nothing": lambda x: x[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_cross_devices(layout: str, device: torch.device) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    view = LAYOUTS[layout]
    assert_same(view(x).to(device), view(x).contiguous() if layout == "slice" else view(x).clone())
    there = view(x.to(device)).cpu()
    assert torch.equal(there, view(x))


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if n not in {"expanded", "overlapping"}])
def test_copies_into_views(layout: str, device: torch.device) -> None:
    view = LAYOUTS[layout]
    source = -torch.arange(24.0).reshape(4, 6) - 1
    # To the device.
    expected = torch.zeros(4, 6)
    actual = expected.to(device)
    view(expected).copy_(view(source))
    view(actual).copy_(view(source))
    assert_same(actual, expected)
    # To the host.
    host = torch.zeros(4, 6)
    view(host).copy_(view(source.to(device)))
    assert torch.equal(host, expected)
    # On the device, with a conversion.
    whole = torch.zeros(4, 6, dtype=torch.int64, device=device)
    view(whole).copy_(view(source.to(device)))
    assert_same(whole, expected.long())


def test_large_transfers(device: torch.device) -> None:
    x = torch.randn(1000, 700)
    y = x.to(device)
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y[3:700:7].cpu(), x[3:700:7])
    assert torch.equal(y.t()[5].cpu(), x.t()[5])
    host = torch.empty(700, 1000)
    host.t().copy_(y)
    assert torch.equal(host, x.t())


def test_the_source_can_change_at_once(device: torch.device) -> None:
    x = torch.zeros(1000, 100)
    copies = []
    for step in range(10):
        x.fill_(step)
        copies.append(x.to(device, non_blocking=True))
    for step, y in enumerate(copies):
        assert bool((y == step).all())


def test_no_copy_where_none_is_needed(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    assert x.to(device) is x
    assert x.float() is x
    assert x.contiguous() is x
    assert x.to(device, copy=True).data_ptr() != x.data_ptr()


def test_broadcasting(device: torch.device) -> None:
    for source in (torch.tensor(3.0), torch.arange(4.0), torch.arange(3.0).view(3, 1)):
        expected = torch.zeros(3, 4).copy_(source)
        assert_same(torch.zeros(3, 4, device=device).copy_(source), expected)
        assert_same(torch.zeros(3, 4, device=device).copy_(source.to(device)), expected)
        assert torch.equal(torch.zeros(3, 4).copy_(source.to(device)), expected)
    for target in (torch.zeros(4), torch.zeros(4, device=device)):
        for source in (torch.zeros(3), torch.zeros(3, device=device)):
            with pytest.raises(RuntimeError, match="must match"):
                target.copy_(source)


def test_empty_is_defined_enough(device: torch.device) -> None:
    x = torch.empty(3, 4, device=device)
    assert x.cpu().shape == (3, 4)
    assert x.clone().shape == (3, 4)
    assert (x + 1).shape == (3, 4)
    y = torch.zeros(3, 4, device=device)
    y.copy_(torch.empty(3, 4, device=device))
    assert y.shape == (3, 4)


def test_numpy(device: torch.device) -> None:
    array = numpy.arange(6.0).reshape(2, 3)
    x = torch.from_numpy(array).to(device)
    assert_same(x, torch.from_numpy(array))
    assert_same(torch.tensor(array, device=device), torch.tensor(array))
    assert_same(torch.as_tensor(array, device=device), torch.as_tensor(array))
    with pytest.raises(TypeError, match="can't convert"):
        x.numpy()


def test_from_python(device: torch.device) -> None:
    values: tuple[Any, ...] = (3, 2.5, True, 1j, [1, 2], [[1.5], [2]], [], [[], []])
    for value in values:
        assert_same(torch.tensor(value, device=device), torch.tensor(value))
    assert_same(
        torch.tensor([torch.tensor(1.0), torch.tensor(2.0)], device=device), torch.tensor([1.0, 2])
    )


def test_deepcopy_and_pickle(device: torch.device) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    pair = {"base": x, "view": x[1]}
    other = copy.deepcopy(pair)
    other["base"].add_(1)
    assert_same(other["view"], torch.tensor([4.0, 5, 6]))
    assert_same(x, torch.arange(6.0).view(2, 3))
    buffer = io.BytesIO()
    torch.save(pair, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    loaded["base"].mul_(2)
    assert_same(loaded["view"], torch.tensor([6.0, 8, 10]))
    buffer.seek(0)
    on_host = torch.load(buffer, map_location="cpu", weights_only=True)
    assert torch.equal(on_host["base"], torch.arange(6.0).view(2, 3))


def test_load_to_the_device(device: torch.device) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(5), "b": torch.ones(2, 2).t()}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location=device, weights_only=True)
    assert_same(loaded["a"], torch.arange(5))
    assert_same(loaded["b"], torch.ones(2, 2).t())


def test_module_moves_and_back(device: torch.device) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    parameters = list(module.parameters())
    module.to(device)
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    for name, value in module.state_dict().items():
        assert_same(value, weights[name])
    module.to(torch.bfloat16).float().cpu()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-2, atol=1e-2)


def test_gradients_cross_devices(device: torch.device) -> None:
    x = torch.ones(3, requires_grad=True)
    (x.to(device) * torch.arange(3.0, device=device)).cpu().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 2]
    y = torch.zeros(3, 3, device=device)
    w = torch.ones(3, requires_grad=True)
    y[1].copy_(w)
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.device.type == "cpu"
    assert w.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("layout", [torch.channels_last, torch.preserve_format])
def test_memory_formats(layout: torch.memory_format, device: torch.device) -> None:
    x = torch.randn(2, 3, 4, 5)
    for start in (x, x.to(memory_format=torch.channels_last), x.permute(3, 0, 1, 2)):
        moved = start.to(device)
        assert moved.stride() == start.stride()
        assert_same(moved.clone(memory_format=layout), start.clone(memory_format=layout))
        assert_same(moved.to(memory_format=layout), start.to(memory_format=layout))
        assert_same(
            torch.empty_like(moved, memory_format=layout).copy_(moved),
            torch.empty_like(start, memory_format=layout).copy_(start),
        )


def test_between_devices() -> None:
    # In a process of its own: the number of virtual devices is chosen when the first one is used.
    script = """
        import torch

        x = torch.arange(12.0).reshape(3, 4)
        first = x.to("tpu:0")
        second = first.to("tpu:1")
        assert second.device == torch.device("tpu:1"), second.device
        assert torch.equal(second.cpu(), x)
        assert torch.equal(first.t()[1:].to("tpu:1").cpu(), x.t()[1:])
        first.add_(1)
        assert torch.equal(second.cpu(), x)
        target = torch.zeros(3, 4, dtype=torch.int64, device="tpu:1")
        target[:, ::2].copy_(first[:, ::2])
        assert target.cpu().tolist() == [[1, 0, 3, 0], [5, 0, 7, 0], [9, 0, 11, 0]], target
        conjugate = torch.tensor([1 + 2j], device="tpu:0").conj().to("tpu:1")
        assert conjugate.cpu().item() == 1 - 2j
        try:
            first + second
        except RuntimeError as error:
            assert "at least two devices" in str(error), error
        else:
            raise AssertionError("tensors on two devices were added")
    """
    subprocess_python.run(script, TORCH_TPU_CPU_DEVICES="2")
