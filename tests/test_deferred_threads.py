"""Threads and streams that record operators: each thread has graphs of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import compare
import pytest
import torch
from torch import nn

from torch_tpu import tpu
from torch_tpu.tpu import EagerMode


@pytest.fixture(autouse=True)
def deferred() -> Iterator[None]:
    """Every test here runs deferred."""
    before = tpu.eager_mode()
    tpu.set_eager_mode(EagerMode.DEFER_AND_FUSE)
    tpu.synchronize()
    yield
    tpu.synchronize()
    tpu.set_eager_mode(before)


def run_in_threads(*works: Callable[[], object]) -> list[object]:
    """Runs each in a thread of its own, at the same time, and returns what they return."""
    results: list[object] = [None] * len(works)
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(i: int) -> None:
        try:
            start.wait(timeout=60)
            results[i] = works[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    assert not errors, errors
    return results


def programs() -> int:
    """Fused programs and others, compiled or loaded so far."""
    stats = compare.dispatch_stats()
    return stats["compiles"] + stats["loads"]


def test_threads_that_infer_have_the_same_programs(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24), nn.LayerNorm(24)).eval()
    inputs = [torch.randn(3, 24) for _ in range(4)]
    with torch.inference_mode():
        expected = [model(x).argsort(-1) for x in inputs]
    model.to(device)
    on_device = [x.to(device) for x in inputs]

    def infer(x: torch.Tensor, turns: int) -> torch.Tensor:
        with torch.inference_mode():
            for _ in range(turns):
                out = model(x).argsort(-1).cpu()
        return out

    infer(on_device[0], 2)
    before = programs()
    results = run_in_threads(*(lambda x=x: infer(x, 25) for x in on_device))
    assert programs() == before
    for result, right in zip(results, expected, strict=True):
        assert isinstance(result, torch.Tensor)
        torch.testing.assert_close(result, right)


def test_threads_that_train_have_the_same_programs(device: torch.device) -> None:
    """Backward passes of all of them are run by one thread of autograd, in turns."""

    def train(seed: int, where: torch.device | str, steps: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        layers = [nn.Linear(20, 28), nn.GELU(), nn.Linear(28, 20), nn.LayerNorm(20)]
        model = nn.Sequential(*layers)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        model.to(where)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.randn(6, 20, generator=generator).to(where)
        y = torch.randint(20, (6,), generator=generator).to(where)
        losses = []
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    train(0, device, 3)
    before = programs()
    results = run_in_threads(*(lambda seed=seed: train(seed, device, 12) for seed in range(3)))
    assert programs() <= before + 1  # the first step may begin in another thread's pause
    for seed, losses in enumerate(results):
        torch.testing.assert_close(losses, train(seed, "cpu", 12), rtol=2e-4, atol=1e-5)


def test_a_value_that_another_thread_has_recorded(device: torch.device) -> None:
    made: list[torch.Tensor] = []
    x = torch.arange(6.0, device=device)
    with tpu.explain() as explained:
        run_in_threads(lambda: made.append(x * 3 - 1))
        y = made[0] + x
        assert y.tolist() == [-1.0, 3.0, 7.0, 11.0, 15.0, 19.0]
    assert "needed elsewhere" in str(explained), str(explained)


def test_threads_that_write_in_turns(device: torch.device) -> None:
    """Each reads what the other has only recorded, so that neither graph may wait for the other."""
    x = torch.ones(5, device=device)
    turn = [threading.Semaphore(1), threading.Semaphore(0)]

    def write(me: int) -> None:
        own = torch.full((5,), float(me), device=device)
        for _ in range(20):
            turn[me].acquire(timeout=60)
            x.mul_(1.5).sub_(own)
            own.add_(x)
            turn[1 - me].release()

    run_in_threads(lambda: write(0), lambda: write(1))
    right = torch.ones(5)
    both = [torch.full((5,), 0.0), torch.full((5,), 1.0)]
    for k in range(40):
        right.mul_(1.5).sub_(both[k % 2])
        both[k % 2].add_(right)
    compare.assert_same(x, right, rtol=1e-4, atol=1e-3)


def test_a_thread_does_not_go_on_with_what_an_ended_one_recorded(device: torch.device) -> None:
    x = torch.arange(7.0, device=device)
    held: list[torch.Tensor] = []

    def record() -> None:
        held.append((x + 2.5) * 4)

    def record_and_read() -> list[float]:
        return ((x - 0.5) * 2).tolist()

    tpu.synchronize()
    with tpu.explain() as explained:
        # At once, so that neither takes the other's place.
        run_in_threads(record, record)
        assert run_in_threads(record_and_read) == [[-1.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0]]
    text = str(explained)
    assert "its thread has ended" in text, text
    assert all(h.tolist() == [4 * (i + 2.5) for i in range(7)] for h in held)


def test_work_belongs_to_the_stream_it_was_recorded_on(device: torch.device) -> None:
    x = torch.rand(64, 64, device=device)
    side = tpu.Stream(device)
    with tpu.explain() as explained:
        with tpu.stream(side):
            y = x @ x
        z = y + 1
        z.cpu()
    assert "the stream changed" in str(explained), str(explained)
    with tpu.stream(side):
        for _ in range(200):
            y = y @ x * 0.1
    side.synchronize()
    assert side.query()
    compare.assert_same(z, (x.cpu() @ x.cpu()) + 1, rtol=1e-5, atol=1e-5)


def test_threads_record_at_the_same_time(device: torch.device) -> None:
    shared = torch.arange(12.0).reshape(3, 4).to(device)

    def work(seed: int) -> torch.Tensor:
        x = shared * float(seed + 2)
        for step in range(40):
            x = (x + shared).sin()
            x.mul_(0.3 / (seed + 1))
            if step % 15 == seed:
                x.sum().item()
        return x.cpu()

    results = run_in_threads(*(lambda seed=seed: work(seed) for seed in range(3)))
    host = shared.cpu()
    for seed, got in enumerate(results):
        x = host * float(seed + 2)
        for _ in range(40):
            x = (x + host).sin()
            x.mul_(0.3 / (seed + 1))
        torch.testing.assert_close(got, x, rtol=1e-4, atol=1e-4)


def test_threads_cut_while_values_are_still_queued(device: torch.device) -> None:
    """What is submitted by one thread reads what waits for the compiler, while others submit."""
    results: list[torch.Tensor] = []

    def work(size: int) -> None:
        for turn in range(3):
            x = torch.ones(size, turn + 5, device=device)
            for _ in range(60):  # cut every sixteen operators
                x = x.add(1.0)
            results.append(x)

    run_in_threads(*(lambda size=size: work(size) for size in (1001, 1002, 1003, 1004)))
    assert len(results) == 12
    for result in results:
        compare.assert_same(result, torch.full(result.shape, 61.0))
