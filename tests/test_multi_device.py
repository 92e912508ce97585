"""Several devices in one process, and several threads on them."""

from __future__ import annotations

import pytest
import subprocess_python


def run_on_two(code: str) -> None:
    """Runs `code` in a process with two devices; it has to end with `print("done")`."""
    out = subprocess_python.run(code + '\nprint("done")', TORCH_TPU_CPU_DEVICES="2")
    assert out.endswith("done\n")


def test_devices_and_the_current_one() -> None:
    run_on_two(
        """
import torch
assert torch.tpu.device_count() == 2 == torch.accelerator.device_count()
assert torch.tpu.current_device() == 0
assert torch.ones(1, device="tpu").device.index == 0
with torch.tpu.device(1):
    assert torch.tpu.current_device() == 1 == torch.accelerator.current_device_index()
    assert torch.ones(1, device="tpu").device == torch.device("tpu", 1)
    assert torch.ones(1).to("tpu").device.index == 1
    assert torch.ones(1).tpu().device.index == 1
    assert torch.randn(2, device="tpu:0").device.index == 0
    with torch.tpu.device_of(torch.ones(1, device="tpu:0")):
        assert torch.tpu.current_device() == 0
    with torch.accelerator.device_index(0):
        assert torch.tpu.current_device() == 0
    assert torch.tpu.current_device() == 1
assert torch.tpu.current_device() == 0
torch.tpu.set_device("tpu:1")
assert torch.ones(1, device="tpu").device.index == 1
torch.accelerator.set_device_index(0)
for i in range(2):
    assert torch.tpu.get_device_properties(i).index == i
assert torch.tpu.get_device_name(1) == torch.tpu.get_device_name(0)
"""
    )


def test_factories_put_their_result_where_it_was_asked_for() -> None:
    run_on_two(
        """
import torch
d = torch.device("tpu", 1)
x = torch.ones(2, 3, device=d)
made = [
    torch.zeros(2, device=d), torch.full((2,), 3.0, device=d), torch.arange(4, device=d),
    torch.eye(3, device=d), torch.linspace(0, 1, 3, device=d), torch.rand(2, device=d),
    torch.randn(2, device=d), torch.randint(3, (2,), device=d), torch.randperm(4, device=d),
    torch.tensor([1, 2], device=d), torch.empty(2, device=d), torch.zeros_like(x),
    torch.randn_like(x), torch.full_like(x, 2), x.new_ones(3), x.new_tensor([1.0]),
    torch.zeros_like(x.to("tpu:0"), device=d), torch.empty_like(x.cpu(), device=d),
    torch.ones(2, device="tpu:0").new_zeros(3, device=d), x + 1, x @ x.t(), x.sum(), x[0],
    torch.nn.functional.dropout(x), x.nonzero(), x.to(torch.bfloat16),
]
for t in made:
    assert t.device == d, t
    t.cpu()
for t in (torch.zeros_like(x, device="tpu:0"), torch.rand_like(x, device="tpu:0")):
    assert t.device.index == 0
    (t + torch.ones(1, device="tpu:0")).cpu()
"""
    )


def test_copies_between_devices() -> None:
    run_on_two(
        """
import torch
for host in (torch.arange(12.0).view(3, 4), torch.arange(6) > 2, torch.randn(3, 0),
             torch.tensor(2.5), torch.randn(3, 4, dtype=torch.bfloat16)):
    a = host.to("tpu:0")
    b = a.to("tpu:1")
    assert b.device.index == 1 and torch.equal(b.cpu(), host) and torch.equal(a.cpu(), host)
    if b.numel():
        b.zero_()
    assert torch.equal(a.cpu(), host)
host = torch.arange(24.0).view(4, 6)
a = host.to("tpu:0")
for view in (lambda x: x.t(), lambda x: x[1:3, ::2], lambda x: x.diagonal(), lambda x: x[:, 2],
             lambda x: x[:1].expand(4, 6)):
    moved = view(a).to("tpu:1")
    assert torch.equal(moved.cpu(), view(host)), moved
    assert moved.stride() == view(host).clone().stride()
b = torch.zeros(4, 6, device="tpu:1")
b[:, ::2].copy_(a[:, 1::2])
assert torch.equal(b.cpu()[:, ::2], host[:, 1::2]) and b.cpu()[:, 1::2].eq(0).all()
b.copy_(a[0])
assert torch.equal(b.cpu(), host[0].expand(4, 6))
b = torch.zeros(4, 6, device="tpu:1", dtype=torch.int64).copy_(a, non_blocking=True)
assert torch.equal(b.cpu(), host.long())
assert (torch.empty(3, device="tpu:0").to("tpu:1") * 0).shape == (3,)
x = torch.ones(3, device="tpu:0", requires_grad=True)
(x.to("tpu:1") * 2).sum().backward()
assert x.grad.device.index == 0 and x.grad.tolist() == [2.0, 2.0, 2.0]
"""
    )


def test_devices_do_not_mix() -> None:
    run_on_two(
        """
import torch
a, b = torch.ones(2, 2, device="tpu:0"), torch.ones(2, 2, device="tpu:1")
for call in (lambda: a + b, lambda: a @ b, lambda: torch.cat([a, b]), lambda: b.add_(a),
             lambda: torch.where(a > 0, a, b), lambda: torch._foreach_add([a, b], [b, a])):
    try:
        call()
    except RuntimeError as error:
        text = str(error)
        assert "same device" in text and "tpu:0" in text and "tpu:1" in text, text
    else:
        raise AssertionError("accepted")
assert a.tolist() == b.tolist() == [[1.0, 1.0], [1.0, 1.0]]
assert (b + torch.tensor(1.0)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
"""
    )


def test_generators_per_device() -> None:
    run_on_two(
        """
import torch
torch.manual_seed(5)
a, b = (torch.randn(4, device=f"tpu:{i}") for i in range(2))
assert torch.equal(a.cpu(), b.cpu())
torch.rand(2, device="tpu:1")
states = torch.tpu.get_rng_state_all()
assert len(states) == 2 and not torch.equal(*states)
torch.tpu.manual_seed(9)
assert torch.equal(torch.tpu.get_rng_state(1), states[1])
torch.tpu.set_rng_state_all(states)
assert torch.equal(torch.tpu.get_rng_state("tpu:0"), states[0])
with torch.random.fork_rng(devices=[0, 1]):
    torch.tpu.seed_all()
    assert torch.tpu.default_generators[0].initial_seed() == \\
        torch.tpu.default_generators[1].initial_seed()
assert torch.equal(torch.tpu.get_rng_state(1), states[1])
g = torch.Generator(device="tpu:1").manual_seed(5)
assert g.device.index == 1 and torch.equal(torch.randn(4, device="tpu:1", generator=g), b)
"""
    )


@pytest.mark.single_operators
def test_streams_and_memory_per_device() -> None:
    run_on_two(
        """
import torch
s = torch.Stream("tpu:1")
assert s.device.index == 1
with torch.tpu.stream(s):
    assert torch.tpu.current_device() == 1 and torch.tpu.current_stream() == s
    assert torch.tpu.current_stream(0) == torch.tpu.default_stream(0)
    event = s.record_event()
assert torch.tpu.current_device() == 0
assert torch.tpu.current_stream(1) == torch.tpu.default_stream(1)
event.synchronize()
torch.full((4,), 2.0, device="tpu:1")  # the number stays on the device
before = [torch.tpu.memory_allocated(i) for i in range(2)]
x = torch.full((1 << 18,), 2.0, device="tpu:1")
assert torch.tpu.memory_allocated(1) - before[1] == 1 << 20
assert torch.tpu.memory_allocated(0) == before[0]
y = x.to("tpu:0")
assert torch.tpu.memory_allocated(0) - before[0] == 1 << 20
for i in range(2):
    torch.tpu.synchronize(i)
torch.tpu.set_per_process_memory_fraction(1e-9, 0)
try:
    y + 1
except torch.OutOfMemoryError as error:
    assert "tpu:0" in str(error)
else:
    raise AssertionError("accepted")
x + 1
torch.tpu.set_per_process_memory_fraction(1.0, 0)
y + 1
"""
    )


def test_modules_and_files() -> None:
    run_on_two(
        """
import io, torch
from torch import nn
model = nn.Linear(3, 2).to("tpu:0")
parameters = list(model.parameters())
model.to("tpu:1")
assert all(a is b for a, b in zip(parameters, model.parameters()))
assert model.weight.device.index == 1
assert model(torch.ones(1, 3, device="tpu:1")).device.index == 1
file = io.BytesIO()
torch.save(model.state_dict(), file)
for location, index in ((None, 1), ("tpu:0", 0), ("tpu", 0), ({"tpu:1": "tpu:0"}, 0)):
    file.seek(0)
    assert torch.load(file, map_location=location)["weight"].device.index == index
"""
    )


def test_threads_on_both_devices() -> None:
    run_on_two(
        """
import os, threading, torch
# Threads record into one graph: which operators are fused, and so rounded together, may differ.
fused = os.environ.get("TORCH_TPU_DEFER_AND_FUSE") == "1"
same = torch.allclose if fused else torch.equal
results, failures = {}, []

def work(device, seed):
    try:
        torch.tpu.set_device(device)
        generator = torch.Generator(device="tpu").manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.01 * seed)
        model.to("tpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(10):
            x = torch.randn(4, 8, device="tpu", generator=generator)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert model[0].weight.device.index == device
        results[device, seed] = model[0].weight.detach().cpu()
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=work, args=(d, s)) for d in range(2) for s in (1, 2, 3)]
for t in threads: t.start()
for t in threads: t.join()
assert not failures, failures
for seed in (1, 2, 3):
    assert same(results[0, seed], results[1, seed])
assert not torch.equal(results[0, 1], results[0, 2])
assert torch.tpu.current_device() == 0
"""
    )


def test_data_parallel_by_hand() -> None:
    run_on_two(
        """
import torch
from torch import nn
torch.set_float32_matmul_precision("highest")
torch.manual_seed(0)
whole = nn.Linear(4, 3)
halves = [nn.Linear(4, 3).to(f"tpu:{i}") for i in range(2)]
for half in halves:
    half.load_state_dict(whole.state_dict())
x = torch.randn(6, 4)
whole(x).square().sum().backward()
for half, part in zip(halves, x.chunk(2)):
    half(part.to(half.weight.device)).square().sum().backward()
total = halves[0].weight.grad + halves[1].weight.grad.to("tpu:0")
torch.testing.assert_close(total.cpu(), whole.weight.grad)
"""
    )


def test_compiled_graphs_with_several_devices_and_changing_sizes() -> None:
    run_on_two(
        """
import torch
from torch import nn
torch.set_float32_matmul_precision("highest")

def moves(x):
    return x.to("tpu:1") * 2

def makes(x):
    return torch.ones(3, device="tpu:1") * x.shape[0], x + 1

def both(x, y):
    return x + 1, y.to(x.device) + x

class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3).to("tpu:0"), nn.Linear(3, 2).to("tpu:1")
    def forward(self, x):
        return self.second(self.first(x).relu().to("tpu:1"))

parts = Parts()
for function, inputs in (
    (moves, lambda n: [torch.randn(n, device="tpu:0")]),
    (makes, lambda n: [torch.randn(n, device="tpu:0")]),
    (both, lambda n: [torch.randn(n, device=d) for d in ("tpu:0", "tpu:1")]),
    (parts, lambda n: [torch.randn(n, 4, device="tpu:0")]),
):
    for dynamic in (None, True):
        torch._dynamo.reset()
        compiled = torch.compile(function, dynamic=dynamic)
        for n in (3, 5, 7):
            given = inputs(n)
            actual, expected = compiled(*given), function(*given)
            if isinstance(actual, torch.Tensor):
                actual, expected = [actual], [expected]
            for a, e in zip(actual, expected, strict=True):
                assert a.device == e.device, (function, n)
                torch.testing.assert_close(a, e)
"""
    )
