"""Storages, views of them, and everything that saves, copies or rebinds them."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import compare
import pytest
import torch
from dtypes import COMMON
from torch import nn

Write = Callable[[torch.Tensor], object]

DTYPES = COMMON


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    values = torch.arange(count) % 7 - 3
    return values.to(dtype).reshape(shape)


# Views: each takes a (4, 6) tensor.
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "row": lambda x: x[2],
    "column": lambda x: x[:, 3],
    "element": lambda x: x[1, 2],
    "slice": lambda x: x[1:3, 2:5],
    "steps": lambda x: x[::2, 1::3],
    "transpose": lambda x: x.t(),
    "transpose and slice": lambda x: x.t()[1:4, ::2],
    "reshape": lambda x: x.view(2, 2, 3, 2),
    "flatten": lambda x: x.view(-1),
    "flatten and slice": lambda x: x.view(-1)[5:17:4],
    "permute": lambda x: x.view(2, 2, 3, 2).permute(2, 0, 3, 1),
    "unsqueeze": lambda x: x.unsqueeze(1)[:, :, ::2],
    "squeeze": lambda x: x[:, 2:3].squeeze(1),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "select": lambda x: x.select(0, 3),
    "diagonal": lambda x: x.diagonal(1),
    "diagonal of slice": lambda x: x[1:, 1:].diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "split": lambda x: x.split(2, dim=1)[1],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(1)[4],
    "unflatten": lambda x: x.unflatten(1, (2, 3))[:, 1],
    "movedim": lambda x: x.view(4, 2, 3).movedim(2, 0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "as_strided": lambda x: x.as_strided((2, 3), (7, 2), 1),
    "as_strided reversed order": lambda x: x.as_strided((3, 2), (2, 9), 3),
    "empty": lambda x: x[2:2],
    "tensor_split": lambda x: x.tensor_split(4, dim=1)[2],
    "detach": lambda x: x.detach()[:2],
}

WRITES: dict[str, Write] = {
    "fill_": lambda v: v.fill_(9),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(numbers(*v.shape) + 20),
    "copy_ from the device": lambda v: v.copy_((numbers(*v.shape) + 30).to(v.device)),
    "add_": lambda v: v.add_(5),
    "mul_": lambda v: v.mul_(v + 1),
    "out": lambda v: torch.add(v.clone(), 3, out=v),
    "setitem": lambda v: v.__setitem__(..., 7),
    "masked_fill_": lambda v: v.masked_fill_(v > 0, 50),
    "normal numbers": lambda v: v.copy_(v.clone().flip(0) if v.dim() else v.clone()),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_reading_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for dtype in DTYPES:
        base = numbers(4, 6, dtype=dtype)
        on_device = base.to("tpu")
        expected, actual = view(base), view(on_device)
        assert actual.stride() == expected.stride()
        assert actual.storage_offset() == expected.storage_offset()
        assert actual.untyped_storage().data_ptr() == on_device.untyped_storage().data_ptr()
        compare.assert_same(actual, expected)
        compare.assert_same(actual.clone(), expected.clone())
        compare.assert_same(actual.contiguous(), expected.contiguous())
        compare.assert_same(actual.to(torch.float32), expected.to(torch.float32))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_writing_through_views(view: Callable[[torch.Tensor], torch.Tensor], write: Write) -> None:
    base = numbers(4, 6)
    on_device = base.to("tpu")
    other = view(on_device)
    write(view(base))
    write(view(on_device))
    compare.assert_same(on_device, base)
    compare.assert_same(other, view(base))


@pytest.mark.parametrize("dtype", DTYPES)
def test_writing_through_views_in_any_dtype(dtype: torch.dtype) -> None:
    for view in VIEWS.values():
        base = numbers(4, 6, dtype=dtype)
        on_device = base.to("tpu")
        view(base).fill_(1)
        view(on_device).fill_(1)
        compare.assert_same(on_device, base)


def test_writing_into_an_unfilled_tensor() -> None:
    for view in VIEWS.values():
        target = torch.empty(4, 6, device="tpu")
        view(target).fill_(3)
        compare.assert_same(view(target), view(torch.full((4, 6), 3.0)))


def test_reading_an_unfilled_tensor() -> None:
    for x in (torch.empty(3, device="tpu"), torch.empty(2, 2, device="tpu").t()[1:]):
        assert x.cpu().shape == x.shape
        assert (x * 0 == 0).shape == x.shape


def test_overlapping_reads() -> None:
    base = numbers(30)
    on_device = base.to("tpu")
    for arguments in (
        ((5, 4), (1, 1), 0),
        ((5, 4), (2, 1), 3),
        ((3, 3, 3), (1, 2, 1), 5),
        ((4, 5), (0, 3), 2),
        ((2, 0), (1, 1), 0),
    ):
        expected = base.as_strided(*arguments)
        actual = on_device.as_strided(*arguments)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected)
        compare.assert_same(actual + 1, expected + 1)
    expected, actual = base[:3, None].expand(3, 4), on_device[:3, None].expand(3, 4)
    assert actual.stride() == (1, 0)
    compare.assert_same(actual * 2, expected * 2)
    compare.assert_same(on_device.unfold(0, 5, 2) * 1, base.unfold(0, 5, 2) * 1)


def test_negative_steps_by_flip() -> None:
    base = numbers(4, 6)
    on_device = base.to("tpu")
    for dims in ((0,), (1,), (0, 1)):
        compare.assert_same(on_device.flip(dims), base.flip(dims))
        compare.assert_same(on_device.t().flip(dims)[1:], base.t().flip(dims)[1:])
    compare.assert_same(on_device.rot90(), base.rot90())
    with pytest.raises(ValueError, match="step must be greater than zero"):
        on_device[::-1]


def test_strides_of_results() -> None:
    base = numbers(2, 3, 4, 5)
    for make in (
        lambda x: x.to(memory_format=torch.channels_last) + 1,
        lambda x: x.permute(3, 1, 0, 2) * 2,
        lambda x: torch.empty_like(x.permute(3, 1, 0, 2)),
        lambda x: torch.empty_like(x[:, ::2]),
        lambda x: torch.empty_like(x, memory_format=torch.channels_last),
        lambda x: torch.zeros_like(x.to(memory_format=torch.channels_last)),
        lambda x: torch.empty(2, 3, 4, 5, device=x.device, memory_format=torch.channels_last),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(1, 2).clone(),
        lambda x: x.transpose(1, 2).clone(memory_format=torch.contiguous_format),
        lambda x: x.transpose(1, 2).float().to(torch.bfloat16),
        lambda x: x.to(memory_format=torch.channels_last).sum(1, keepdim=True),
        lambda x: x.to(memory_format=torch.channels_last) + x,
        lambda x: x.expand(3, 2, 3, 4, 5).clone(),
        lambda x: x.new_empty((2, 3)),
        lambda x: x.new_empty_strided((2, 3), (1, 5)),
        lambda x: torch.empty_strided((2, 3), (1, 2), device=x.device),
        lambda x: x.permute(1, 0, 2, 3).relu(),
        lambda x: x.permute(1, 0, 2, 3).gt(0),
    ):
        expected, actual = make(base), make(base.to("tpu"))
        assert actual.stride() == expected.stride()
        assert actual.dtype == expected.dtype and actual.shape == expected.shape


def test_channels_last_values() -> None:
    base = numbers(2, 3, 4, 5)
    x = base.to("tpu").to(memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(x.cpu(), base)
    x[:, 1] = 5
    expected = base.clone()
    expected[:, 1] = 5
    torch.testing.assert_close(x.cpu(), expected)
    moved = base.to(memory_format=torch.channels_last).to("tpu")
    assert moved.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved.cpu(), base)
    assert moved.cpu().is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
        (torch.int64, torch.int32),
        (torch.int64, torch.float64),
        (torch.uint8, torch.float32),
        (torch.uint8, torch.int64),
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.float32),
        (torch.bool, torch.uint8),
        (torch.complex64, torch.float32),
        (torch.float32, torch.complex64),
    ],
)
def test_view_as_another_dtype(source: torch.dtype, target: torch.dtype) -> None:
    base = numbers(3, 16, dtype=source)
    on_device = base.to("tpu")
    expected, actual = base.view(target), on_device.view(target)
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
    torch.testing.assert_close(actual[1:].cpu(), expected[1:], equal_nan=True)
    actual[1].zero_()
    expected[1].zero_()
    torch.testing.assert_close(on_device.cpu(), base, equal_nan=True)
    # and back: the storage may hold either dtype now
    torch.testing.assert_close(on_device.view(target).view(source).cpu(), base, equal_nan=True)
    on_device[0, :8] = 1
    base[0, :8] = 1
    torch.testing.assert_close(on_device.view(target).cpu(), base.view(target), equal_nan=True)


def test_view_as_real_and_complex() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    on_device = z.to("tpu")
    compare.assert_same(torch.view_as_real(on_device), torch.view_as_real(z))
    torch.view_as_real(on_device)[..., 1] = 2.0
    torch.view_as_real(z)[..., 1] = 2.0
    compare.assert_same(on_device, z)
    pairs = torch.randn(5, 2)
    compare.assert_same(torch.view_as_complex(pairs.to("tpu")), torch.view_as_complex(pairs))
    on_device.real.fill_(1)
    z.real.fill_(1)
    compare.assert_same(on_device, z)
    torch.testing.assert_close(on_device.conj().cpu(), z.conj())
    torch.testing.assert_close((on_device.conj() * 2).cpu(), z.conj() * 2)
    torch.testing.assert_close(on_device.imag.cpu(), z.imag)


def test_storages() -> None:
    x = torch.arange(12.0, device="tpu").view(3, 4)
    storage = x.untyped_storage()
    assert storage.nbytes() == 48 == len(storage) and storage.device == torch.device("tpu", 0)
    assert x.t().untyped_storage().data_ptr() == storage.data_ptr() == x.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 16
    assert x[1:].untyped_storage()._cdata == storage._cdata
    others = [torch.empty(12, device="tpu") for _ in range(100)]
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in [x, *others])
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert torch.empty(0, device="tpu").data_ptr() == 0
    assert storage.cpu().tolist() == list(x.cpu().untyped_storage().tolist())
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert storage.clone().cpu().tolist() == storage.cpu().tolist()
    assert storage.resizable()
    host = torch.arange(12.0).untyped_storage()
    moved = host.to(device=torch.device("tpu"))
    assert moved.device.type == "tpu" and moved.cpu().tolist() == host.tolist()
    storage.copy_(torch.ones(12).untyped_storage())
    assert x.tolist() == [[1.0] * 4] * 3
    storage.fill_(0)  # type: ignore[attr-defined]
    assert x.tolist() == [[0.0] * 4] * 3


def test_a_tensor_over_a_byte_storage() -> None:
    expected = torch.arange(6.0).reshape(2, 3)
    storage = expected.clone().untyped_storage().to(device="tpu")
    x = torch.empty(0, device="tpu").set_(storage, 0, (2, 3), (3, 1))
    compare.assert_same(x, expected)
    compare.assert_same(x @ x.t(), expected @ expected.t())
    x.add_(1)
    compare.assert_same(x, expected + 1)
    assert torch.tensor(storage.cpu().tolist(), dtype=torch.uint8).view(torch.float32).tolist() == [
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
        6.0,
    ]
    half = torch.tensor([], dtype=torch.int64, device="tpu").set_(storage, 1, (2,), (1,))
    assert half.tolist() == (expected + 1).view(-1).view(torch.int64)[1:].tolist()


def test_set() -> None:
    a, b = torch.arange(4.0, device="tpu"), torch.arange(10.0, 16.0, device="tpu")
    alias = a.view(2, 2)
    a.set_(b)  # type: ignore[call-overload]
    assert a.tolist() == b.tolist() and a.data_ptr() == b.data_ptr()
    a[0] = -1
    assert b[0].item() == -1 and alias.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    a.set_(alias.untyped_storage(), 1, (2,), (2,))
    assert a.tolist() == [1.0, 3.0]
    a.set_()  # type: ignore[call-overload]
    assert a.shape == (0,)
    with pytest.raises(RuntimeError, match="device"):
        b.set_(torch.ones(3).untyped_storage())


def test_resize() -> None:
    x = torch.arange(6.0, device="tpu")
    view = x[2:4]
    x.resize_(2, 2)
    assert x.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    x.resize_(3, 4)
    assert x.view(-1)[:6].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    x.fill_(5)
    assert view.tolist() == [5.0, 5.0]
    x.resize_(0)
    assert x.tolist() == []
    y = torch.empty(0, device="tpu").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert y.stride() == torch.empty(2, 3, 4, 5, memory_format=torch.channels_last).stride()
    assert torch.ones(3, device="tpu").resize_as_(torch.ones(2, 2, device="tpu")).shape == (2, 2)


def test_storage_resize_to_zero_and_back() -> None:
    parameter = nn.Parameter(torch.ones(3, 4, device="tpu"))
    view = parameter.data[1]
    storage = parameter.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    assert storage.nbytes() == 0 and parameter.shape == (3, 4)
    storage.resize_(size)
    assert storage.nbytes() == size
    with torch.no_grad():
        parameter.copy_(torch.arange(12.0).view(3, 4))
    assert view.tolist() == [4.0, 5.0, 6.0, 7.0]
    # a part is written first
    storage.resize_(0)
    storage.resize_(size)
    view.fill_(1)
    assert view.tolist() == [1.0] * 4
    # as it was, and larger
    storage.resize_(2 * size)
    assert storage.nbytes() == 2 * size and view.tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_save_and_load(tmp_path: Path, dtype: torch.dtype) -> None:
    host = numbers(4, 6, dtype=dtype)
    x = host.to("tpu")
    path = tmp_path / "x.pt"
    torch.save({"x": x, "row": x[1], "t": x.t()}, path)
    for map_location, device in (
        (None, "tpu"),
        ("cpu", "cpu"),
        ("tpu", "tpu"),
        ("tpu:0", "tpu"),
        (torch.device("tpu"), "tpu"),
        ({"tpu:0": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
    ):
        loaded = torch.load(path, map_location=map_location)
        assert {t.device.type for t in loaded.values()} == {device}
        assert loaded["row"].data_ptr() == loaded["x"].data_ptr() + 6 * loaded["x"].itemsize
        for name, expected in (("x", host), ("row", host[1]), ("t", host.t())):
            assert loaded[name].stride() == expected.stride()
            assert torch.equal(loaded[name].cpu(), expected)
        loaded["row"].fill_(1)
        assert loaded["x"][1].bool().all()

    torch.save(host, path)
    moved = torch.load(path, map_location="tpu")
    compare.assert_same(moved, host)
    torch.save(x, path, _use_new_zipfile_serialization=False)
    compare.assert_same(torch.load(path), host)
    compare.assert_same(torch.load(path, map_location="cpu").to("tpu"), host)


def test_loaded_tensors_are_like_others(tmp_path: Path) -> None:
    # Files are read as bytes; programs for the tensors in them must not have to know that.
    path = tmp_path / "x.pt"
    torch.save(torch.ones(3, 5), path)
    ordinary = torch.ones(3, 5, device="tpu")
    (ordinary * 2.5).exp()
    loaded = torch.load(path, map_location="tpu")
    moved = torch.empty(3, 5, device="tpu").copy_(loaded)
    for x in (loaded, moved, copy.deepcopy(ordinary), copy.deepcopy(loaded)):
        torch.tpu.reset_dispatch_stats()  # type: ignore[attr-defined]
        (x * 2.5).exp()
        assert torch.tpu.dispatch_stats()["cache_hits"] == 2  # type: ignore[attr-defined]


def test_load_with_mmap_and_state_dicts(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to("tpu")
    torch.save(model.state_dict(), path)
    for options in ({}, {"mmap": True}, {"map_location": "tpu"}, {"map_location": "cpu"}):
        other = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to("tpu")
        if options.get("mmap"):
            state = torch.load(path, map_location="cpu", mmap=True)
        else:
            state = torch.load(path, **options)
        for assign in (False, True):
            other.load_state_dict(state, assign=assign)
            for name, value in model.state_dict().items():
                assert torch.equal(other.state_dict()[name].cpu(), value.cpu())


def test_optimizer_state(tmp_path: Path) -> None:
    model = nn.Linear(4, 3).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, device="tpu")).sum().backward()
    optimizer.step()
    path = tmp_path / "optimizer.pt"
    torch.save(optimizer.state_dict(), path)
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(torch.load(path))
    for a, b in zip(other.state.values(), optimizer.state.values(), strict=True):
        assert torch.equal(a["exp_avg"], b["exp_avg"]) and a["exp_avg"].device.type == "tpu"
    model(torch.ones(1, 4, device="tpu")).sum().backward()
    other.step()


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    tensors = {str(dtype): numbers(4, 6, dtype=dtype) for dtype in DTYPES if not dtype.is_complex}
    safetensors.save_file({name: t.to("tpu") for name, t in tensors.items()}, path)
    # safetensors has a list of device names, without this one; a number is PyTorch's accelerator.
    for device, kind in (("cpu", "cpu"), (0, "tpu")):
        loaded = safetensors.load_file(path, device=device)
        for name, expected in tensors.items():
            assert loaded[name].device.type == kind
            assert loaded[name].dtype == expected.dtype
            assert torch.equal(loaded[name].cpu(), expected)
    model = nn.Linear(4, 3).to("tpu")
    model.tied = model.weight
    safetensors.save_model(model, str(path))
    other = nn.Linear(4, 3).to("tpu")
    other.tied = other.weight
    safetensors.load_model(other, str(path))
    assert torch.equal(other.weight, model.weight)


def test_pickle_and_deepcopy() -> None:
    x = numbers(4, 6).to("tpu")
    buffer = io.BytesIO()
    pickle.dump(x, buffer)
    for other in (copy.deepcopy(x), pickle.loads(buffer.getvalue()), copy.deepcopy(x[1:].t())):
        assert other.device == x.device
        other.zero_()
    compare.assert_same(x, numbers(4, 6))
    pair = copy.deepcopy([x, x[1]])
    pair[1].fill_(8)
    assert pair[0][1].tolist() == [8.0] * 6
    compare.assert_same(copy.copy(x), numbers(4, 6))
    parameter = nn.Parameter(x)
    other = copy.deepcopy(parameter)
    assert isinstance(other, nn.Parameter) and other.requires_grad and other.device == x.device


def test_data_shares() -> None:
    x = torch.ones(3, device="tpu", requires_grad=True)
    x.data.mul_(3)
    assert x.tolist() == [3.0] * 3 and x._version == 0
    x.data = torch.zeros(2, device="tpu")
    assert x.shape == (2,) and x.requires_grad
    y = x.detach()
    y.fill_(4)
    assert x.tolist() == [4.0, 4.0]


def test_clones_are_independent() -> None:
    x = torch.ones(4, device="tpu")
    clones = [x.clone(), x.clone()[1:], torch.empty_like(x).copy_(x), x.to(torch.float64).float()]
    x.zero_()
    assert all(clone.eq(1).all() for clone in clones)
    clones[0].fill_(7)
    assert clones[2].eq(1).all()


def test_copies_between_dtypes_shapes_and_devices() -> None:
    for source in DTYPES:
        for target in DTYPES:
            if source.is_complex and not target.is_complex:
                continue
            # Of a negative float there is no unsigned value.
            host = numbers(3, 4, dtype=source) + (3 if target is torch.uint8 else 0)
            expected = torch.zeros(2, 3, 4, dtype=target).copy_(host)
            from_host = torch.zeros(2, 3, 4, dtype=target, device="tpu").copy_(host)
            on_device = torch.zeros(2, 3, 4, dtype=target, device="tpu").copy_(host.to("tpu"))
            to_host = torch.zeros(2, 3, 4, dtype=target).copy_(host.to("tpu"))
            compare.assert_same(from_host, expected)
            compare.assert_same(on_device, expected)
            assert torch.equal(to_host, expected)


def test_to_and_back() -> None:
    for shape in ((), (0,), (3,), (2, 0, 3), (2, 3, 4), (1, 1, 1, 1, 1, 1, 2)):
        for dtype in DTYPES:
            host = numbers(*shape, dtype=dtype)
            x = host.to("tpu")
            assert x.shape == host.shape and x.dtype == dtype
            assert torch.equal(x.cpu(), host)
            assert x.tolist() == host.tolist()
            assert x.to("tpu") is x and x.to("tpu", copy=True) is not x
    narrow = numbers(6, 6)[1:4, ::2]
    compare.assert_same(narrow.to("tpu").contiguous(), narrow.contiguous())
    assert torch.equal(numbers(6, 6).to("tpu")[1:4, ::2].cpu(), narrow)
    assert numbers(3).to("tpu").numpy(force=True).tolist() == numbers(3).tolist()


def test_printing() -> None:
    for host in (
        numbers(2, 3),
        torch.tensor(3.5),
        torch.tensor([1e-8, 1.0, float("nan"), float("inf")]),
        torch.tensor([True, False]),
        torch.empty(0, 3),
        numbers(3, dtype=torch.int64),
        torch.randn(40, 50),
        numbers(2, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
    ):
        text = repr(host.to("tpu"))
        assert "device='tpu:0'" in text
        plain = "".join(text.replace("device='tpu:0'", "").split())
        expected = "".join(repr(host).split())
        strip = lambda s: s.replace(",)", ")").replace(",,", ",")  # noqa: E731
        assert strip(plain) == strip(expected)
    parameter = nn.Parameter(torch.ones(1, device="tpu"))
    assert "requires_grad=True" in repr(parameter) and f"{parameter.item():.1f}" == "1.0"
    assert f"{torch.tensor(2.5, device='tpu'):.2f}" == "2.50"


def test_dlpack_and_numpy() -> None:
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        torch.ones(2, device="tpu").numpy()


def test_scalars() -> None:
    assert torch.tensor(3, device="tpu").item() == 3
    assert torch.tensor([[2.5]], device="tpu").item() == 2.5
    assert bool(torch.tensor(True, device="tpu")) and int(torch.tensor(4.0, device="tpu")) == 4
    assert [10, 20, 30][torch.tensor(1, device="tpu")] == 20
    assert torch.tensor(1 + 2j, device="tpu").item() == 1 + 2j


def test_autograd_through_views_and_in_place_updates() -> None:
    def compute(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = numbers(4, 6).to(device).requires_grad_()
        x = leaf * 2
        x[1:3] *= 3
        x.t()[2].add_(x[:, 0].detach())
        x.view(2, 12)[0, ::2] = 1
        x.diagonal().mul_(2)
        x.square().sum().backward()
        assert leaf.grad is not None
        return x.detach(), leaf.grad

    for actual, expected in zip(compute("tpu"), compute("cpu"), strict=True):
        compare.assert_same(actual, expected)
