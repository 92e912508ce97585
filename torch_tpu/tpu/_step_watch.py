"""What Python code does while a training step is traced: which values are constants, which are not.

Operators on the device are the engine's business. Here it is about tensors on the CPU, whose values
become a part of the program, and about numbers: an optimizer that wants a step count or a learning
rate as a Python number gets a tensor of the program instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from torch_tpu.tpu._step_errors import NotCapturableError
from torch_tpu.tpu._step_numbers import Numbers, rewritten

# Their results are not the same at every call.
_RANDOM = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
_READS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"}


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments and results of PyTorch's functions."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


class Watch(TorchFunctionMode):
    """Active while a step is traced."""

    def __init__(self) -> None:
        super().__init__()
        #: What was raised: the step may have caught it.
        self.refusal: NotCapturableError | None = None
        #: The numbers that are read on the host at every call.
        self.numbers: Numbers | None = None
        #: In how many calls of optimizer.step() we are.
        self.in_optimizer = 0
        #: While what runs is not traced.
        self.paused = False
        # CPU tensors that were made in the step of nothing but Python's numbers, by identity.
        self._constants: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self.in_optimizer and name == "item" and _on_device(args[0]):
            return args[0]
        if self.numbers is not None and not kwargs:
            known = self.numbers.call(name, args)
            if known is not None:
                return known[0]
        call = rewritten(name, func, args, kwargs)
        if call is not None:
            return call()
        given = list(tensors_in((args, kwargs)))
        strangers = [t for t in given if t.device.type == "cpu" and id(t) not in self._constants]
        if strangers and name in _READS:
            self.refuse(
                f"{_name(func)} reads a tensor on the CPU, whose value may be another one at the "
                "next call; pass what changes to the step as an argument"
            )
        result = func(*args, **kwargs)
        results = list(tensors_in((result,)))
        if strangers and any(_on_device(t) for t in (*given, *results)):
            self.refuse(
                f"{_name(func)} takes a tensor on the CPU {tuple(strangers[0].shape)}, whose "
                "values may be others at the next call; pass it to the step as an argument, or "
                "keep it on the device"
            )
        if not strangers and name not in _RANDOM and not _from_memory(args):
            for t in results:
                if t.device.type == "cpu":
                    self._constants[id(t)] = t
        return result

    def refuse(self, reason: str) -> NoReturn:
        """The step cannot be a program, whether or not it catches the exception."""
        self.refusal = NotCapturableError(reason)
        raise self.refusal


def _from_memory(args: tuple[Any, ...]) -> bool:
    return any(type(a).__module__ == "numpy" or isinstance(a, memoryview) for a in args)


def _on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _name(func: Callable[..., Any]) -> str:
    return resolve_name(func) or getattr(func, "__name__", str(func))


class _OnThread:
    """True on the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __bool__(self) -> bool:
        return threading.get_ident() == self._thread


@contextlib.contextmanager
def compiling_on_this_thread() -> Iterator[None]:
    """``torch.compiler.is_compiling()``, whose flag is for all threads, is true on this one.

    Optimizers that train on another thread would take their state to be on the device.
    """
    with torch.compiler._compile_session_context():
        if threading.active_count() > 1:
            flag: Any = _OnThread()
            torch.compiler._is_compiling_flag = flag
        yield


def adafactor_step(optimizer: torch.optim.Adafactor, closure: Any = None) -> Any:
    """``Adafactor.step`` without reading the step count and norms from the device.

    PyTorch's chooses by them in Python. The formulas are those of its documentation.
    """
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    _adafactor_update(p, optimizer.state[p], group)
    return loss


def _adafactor_update(p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        raise NotCapturableError("Adafactor has no state for a parameter yet")
    lr, (eps1, eps2), dtype = group["lr"], group["eps"], p.dtype
    if eps1 is None:
        eps1 = torch.finfo(dtype).eps
    assert p.grad is not None
    grad = -p.grad if group["maximize"] else p.grad
    step = state["step"]
    step += 1
    decay = step ** group["beta2_decay"]
    rho = torch.minimum(step.rsqrt(), torch.as_tensor(lr, device=p.device, dtype=step.dtype))
    alpha = (p.norm(2) / p.numel() ** 0.5).clamp_min(eps2).to(step.dtype) * rho
    if group["weight_decay"] != 0:
        p.mul_(1 - lr * group["weight_decay"])
    weight = decay.to(dtype)
    if grad.dim() > 1:
        rows, columns = state["row_var"], state["col_var"]
        rows.lerp_(grad.square().mean(dim=-1, keepdim=True), weight)
        columns.lerp_(grad.square().mean(dim=-2, keepdim=True), weight)
        variance = rows @ columns / rows.mean(dim=-2, keepdim=True).clamp_min(eps1)
    else:
        state["variance"].lerp_(grad.square(), weight)
        variance = state["variance"]
    update = variance.clamp_min(eps1 * eps1).rsqrt() * grad
    scale = (update.norm(2) / (update.numel() ** 0.5 * group["d"])).clamp_min(1.0)
    p.sub_(update * (alpha / scale).to(dtype))
