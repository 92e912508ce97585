"""PyTorch's compiler is imported where something is compiled, and nowhere else."""

from __future__ import annotations

import subprocess_python

TRAIN = """
import sys
import torch
from torch import nn

def train(device, kinds):
    losses = []
    for kind, settings in kinds:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)).to(device)
        optimizer = kind(model.parameters(), **settings)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4, device=device)).square().sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        assert not any(p.grad is None for p in model.parameters())
    return losses, optimizer

KINDS = [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.1})]
"""


def test_training_does_not_import_it() -> None:
    out = subprocess_python.run(
        TRAIN
        + """
tpu, _ = train("tpu", KINDS)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
torch.set_float32_matmul_precision("highest")
cpu, _ = train("cpu", KINDS)
print("torch._dynamo" in sys.modules)
"""
    )
    assert out.splitlines()[-2:] == ["[]", "False"]


def test_functions_are_pytorchs_own_once_it_is_imported() -> None:
    """Also of an optimizer that was made before, whose scheduler keeps its step."""
    out = subprocess_python.run(
        """
import torch
from torch.optim import optimizer as module
own = {kind: kind.step for kind in (torch.optim.SGD, torch.optim.Adam)}
check = torch._check_with
"""
        + TRAIN
        + """
assert torch.optim.SGD.step is own[torch.optim.SGD]  # until the device is used
torch.ones(1, device="tpu")
before, optimizer = train("cpu", KINDS)
assert torch.optim.SGD.step is not own[torch.optim.SGD]
import torch._dynamo
code = module._use_grad_for_differentiable.__code__.co_consts
for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop):
    step = kind.step
    if hasattr(step, "hooked"):
        assert step.__code__.co_name == "wrapper"
        step = step.__wrapped__
    assert step.__code__ in code, kind
assert not hasattr(torch._compile, "getattr")
assert torch._check_with is check
after, _ = train("cpu", KINDS)
assert before == after
graph_breaks = []
torch._dynamo.graph_break = lambda *a, **k: graph_breaks.append(1)
optimizer.step()
print(len(graph_breaks))
compiled = torch.compile(optimizer.step, backend="eager")
compiled()
print("done")
"""
    )
    assert out.splitlines() == ["2", "done"]


def test_conditions_are_checked() -> None:
    out = subprocess_python.run(
        """
import sys
import torch
torch.ones(1, device="tpu")
torch._check(True)
torch._check_value(1 < 2, lambda: "no message")
print("sympy" in sys.modules)
for wrong in (lambda: torch._check(False, lambda: "it says so"), lambda: torch._check(1)):
    try:
        wrong()
    except (RuntimeError, TypeError) as error:
        print(type(error).__name__, error)
"""
    )
    assert out.splitlines() == [
        "False",
        "RuntimeError it says so",
        "TypeError cond must be a bool, but got <class 'int'>",
    ]
