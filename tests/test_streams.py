"""Streams, events and asynchronous copies."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

tpu = torch.tpu  # type: ignore[attr-defined]


def heavy(size: int = 700, times: int = 8) -> torch.Tensor:
    """Starts work that takes a while; its elements are all equal."""
    x = torch.full((size, size), 1.0 / size, device="tpu")
    y = x
    for _ in range(times):
        y = y @ x * size
        y = y / y.mean().clamp(min=1e-3) * (1.0 / size)
    return y


def test_current_and_default_stream() -> None:
    default = tpu.default_stream()
    assert isinstance(default, torch.Stream) and isinstance(default, tpu.Stream)
    assert tpu.current_stream() == default == torch.accelerator.current_stream()
    assert default.device == torch.device("tpu", 0)
    stream = tpu.Stream(priority=-1)
    assert stream != default and stream != tpu.Stream()
    with tpu.stream(stream) as entered:
        assert entered is stream
        assert tpu.current_stream() == stream == torch.accelerator.current_stream()
        with tpu.stream(None):
            assert tpu.current_stream() == stream
        with tpu.stream(default):
            assert tpu.current_stream() == default
        assert tpu.current_stream() == stream
    assert tpu.current_stream() == default
    with torch.Stream("tpu") as generic:
        assert tpu.current_stream() == generic
    assert tpu.current_stream() == default


def test_set_stream() -> None:
    stream = torch.Stream(device="tpu")
    tpu.set_stream(stream)
    try:
        assert tpu.current_stream() == stream
        assert hash(tpu.current_stream()) == hash(stream)
        tpu.set_stream(None)
        assert tpu.current_stream() == stream
    finally:
        tpu.set_stream(tpu.default_stream())
    assert tpu.current_stream() == tpu.default_stream()


def test_stream_context_restores_after_an_exception() -> None:
    with pytest.raises(KeyError), tpu.stream(tpu.Stream()):
        raise KeyError
    assert tpu.current_stream() == tpu.default_stream()


def test_results_can_be_used_on_other_streams() -> None:
    first, second = tpu.Stream(), tpu.Stream(device="tpu:0")
    with tpu.stream(first):
        x = heavy()
        event = first.record_event()
    with tpu.stream(second):
        second.wait_event(event)
        y = x + 1
        x.record_stream(second)
    tpu.current_stream().wait_stream(second)
    torch.testing.assert_close(y.cpu(), torch.full(y.shape, 1 + 1 / 700), rtol=1e-4, atol=1e-4)


def test_synchronize_waits() -> None:
    stream = tpu.Stream()
    for wait in (tpu.synchronize, torch.accelerator.synchronize, stream.synchronize):
        with tpu.stream(stream):
            kept = heavy(times=3)
        wait()
        assert stream.query()
        with tpu.stream(stream):
            heavy(times=1)
        gc.collect()
        wait()  # also for results that nobody holds any more
        assert stream.query()
        del kept


def test_an_event_covers_the_work_before_it() -> None:
    event = tpu.Event()
    assert event.query()  # nothing recorded
    heavy()
    event.record()
    event.synchronize()
    assert event.query()
    event.record(tpu.Stream())
    event.wait()
    assert event.query()
    assert isinstance(tpu.current_stream().record_event(), tpu.Event)
    generic = torch.Event("tpu")
    assert tpu.current_stream().record_event(generic) is generic
    generic.synchronize()


def test_a_stream_that_waits_for_an_event_covers_its_work() -> None:
    stream = tpu.Stream()
    result = heavy()
    event = tpu.current_stream().record_event()
    stream.wait_event(event)
    stream.synchronize()
    assert event.query()
    del result


def test_elapsed_time() -> None:
    heavy(times=1)
    start, end = tpu.Event(enable_timing=True), torch.Event("tpu", enable_timing=True)
    begun = time.perf_counter()
    heavy(times=2)
    start.record()
    x = heavy(times=4)
    end.record()
    end.synchronize()
    start.synchronize()
    elapsed = start.elapsed_time(end)
    assert 0 < elapsed <= (time.perf_counter() - begun) * 1000
    del x


def test_elapsed_time_needs_timing() -> None:
    start, end = tpu.Event(), tpu.Event(enable_timing=True)
    start.record()
    end.record()
    tpu.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing=True"):
        start.elapsed_time(end)


def test_pinned_memory() -> None:
    x = torch.arange(10.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[3:].is_pinned() and torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.empty(0, pin_memory=True).numel() == 0
    assert pinned.untyped_storage().is_pinned()
    with pytest.raises(RuntimeError, match="dense CPU tensors can be pinned"):
        torch.empty(3, pin_memory=True, device="tpu")


def test_upload_from_pinned_memory_keeps_it() -> None:
    expected = torch.arange(1 << 20, dtype=torch.float32)
    results = []
    for i in range(10):
        source = (expected + i).pin_memory()
        results.append(source.to("tpu", non_blocking=True))
        del source
        torch.empty(1 << 20, pin_memory=True).fill_(-1.0)  # would take the memory if it were free
    for i, result in enumerate(results):
        assert torch.equal(result.cpu(), expected + i)


def test_upload_from_ordinary_memory_takes_the_value_at_once() -> None:
    for non_blocking in (False, True):
        source = torch.zeros(1 << 20)
        moved = source.to("tpu", non_blocking=non_blocking)
        source.fill_(1.0)
        assert not moved.any().item()


def test_download_to_pinned_memory() -> None:
    x = heavy()
    target = torch.full((700, 700), -1.0).pin_memory()
    target.copy_(x, non_blocking=True)
    event = tpu.current_stream().record_event()
    event.synchronize()
    assert torch.equal(target, x.cpu())

    y = x.t()[1:] * 2
    host = y.to("cpu", non_blocking=True)
    tpu.synchronize()
    assert torch.equal(host, y.cpu())

    transposed = torch.empty(700, 700, pin_memory=True).t()
    transposed.copy_(x, non_blocking=True)
    wide = torch.empty(700, 700, pin_memory=True, dtype=torch.float64)
    wide.copy_(x, non_blocking=True)
    tpu.synchronize()
    assert torch.equal(transposed, x.cpu()) and torch.equal(wide, x.cpu().double())


def test_download_gives_the_value_of_its_time() -> None:
    x = torch.zeros(1 << 20, device="tpu")
    targets = []
    for i in range(8):
        target = torch.empty(1 << 20, pin_memory=True)
        target.copy_(x, non_blocking=True)
        targets.append(target)
        x.add_(1)
        assert i < 8
    torch.accelerator.current_stream().synchronize()
    assert [t.unique().tolist() for t in targets] == [[float(i)] for i in range(8)]


def test_download_into_memory_that_is_dropped() -> None:
    x = torch.ones(1 << 20, device="tpu")
    for _ in range(20):
        torch.empty(1 << 20, pin_memory=True).copy_(x, non_blocking=True)
    others = [torch.zeros(1 << 20).pin_memory() for _ in range(10)]
    tpu.synchronize()
    assert not any(other.any() for other in others)


def test_data_loader_pins_memory() -> None:
    data = TensorDataset(torch.arange(64.0).reshape(32, 2), torch.arange(32))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=2)
    total = torch.zeros((), device="tpu")
    for _ in range(2):
        for features, labels in loader:
            assert features.is_pinned() and labels.is_pinned()
            total += features.to("tpu", non_blocking=True).sum()
            total += labels.to("tpu", non_blocking=True).sum()
    assert total.item() == 2 * (64 * 63 / 2 + 32 * 31 / 2)


def test_waiting_does_not_hold_the_gil() -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for _ in range(40):
            before = ticks
            x = heavy(1000, 6)
            tpu.synchronize()
            del x
            if ticks > before + 3:
                break
    finally:
        done.set()
        thread.join()
    assert ticks > before + 3


def test_host_allocator_functions() -> None:
    torch.accelerator.memory.empty_host_cache()
    x = torch.empty(1000, pin_memory=True)
    assert x.is_pinned()
