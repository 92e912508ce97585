"""Compiling what a call needs before it runs."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torch_tpu import _C
from torch_tpu.tpu._live_objects import leaves, live_objects

# Dry runs follow each other: two of them could share tensors.
_one_at_a_time = threading.Lock()

# A dry run is repeated while it changes which programs the same calls need; once is enough, unless
# the call does not do the same every time.
_MAX_PASSES = 3


@dataclass(frozen=True)
class WarmupReport:
    """What :func:`warmup` has done."""

    programs: int
    """Distinct programs that the call needs."""
    compiled: int
    """Those that were compiled."""
    loaded: int
    """Those that came from the compilation cache."""
    ready: int
    """Those that were in memory before."""
    seconds: float
    """How long it took."""

    def __str__(self) -> str:
        return (
            f"{self.programs} programs in {self.seconds:.1f} s: {self.compiled} compiled, "
            f"{self.loaded} loaded from the cache, {self.ready} ready before"
        )


def warmup(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> WarmupReport:
    """Compile everything that ``fn(*args, **kwargs)`` needs, in parallel, computing nothing.

    ``fn`` is called, but no operator of the device runs in it: the programs are compiled in the
    background, results have sizes and dtypes and no values. ``fn`` can be anything: a model, a
    training step with backward pass and optimizer, a generation loop. Its first real call then
    compiles nothing, if it takes the same way.

    What is as before afterwards: the contents of all tensors on the device; gradients; the state of
    optimizers, learning rate schedulers and gradient scalers; the attributes of modules; the random
    state of PyTorch, Python and NumPy. Everything else that ``fn`` does happens for real, with the
    values that it sees: it prints, counts, appends to lists, and changes CPU tensors.

    Where ``fn`` reads values of device tensors that it computed (``item()``, ``tolist()``,
    ``bool()``, ``cpu()``), it sees zeros. Small integers and booleans follow from the values on the
    host and the tensors that existed before, with zeros for random and floating-point numbers:
    lengths, positions and masks. So ``nonzero`` and ``masked_select`` of a mask that was computed
    from activations give empty tensors, ``unique`` a single value. An operator that runs on the CPU
    gets zeros too. Backward runs on this thread; what ``fn`` does on other threads is not covered.

    A tensor that ``fn`` makes and leaves somewhere (in a global variable, in an object that is none
    of those above) holds no data: using it later raises RuntimeError, and a warning here says that
    there are some.

    Args:
        fn: What to call.
        *args: Passed on.
        **kwargs: Passed on.

    Returns:
        The number of programs, and where they came from.

    Raises:
        RuntimeError: A program could not be compiled, or warmup was called by ``fn`` itself.
        Exception: What ``fn`` raises, with a note that it was in a dry run.
    """
    if not callable(fn):
        raise TypeError(
            f"torch.tpu.warmup: expected a callable, got {type(fn).__name__}; pass the function "
            "and its arguments, as in warmup(step, batch), and not what a call of it gives"
        )
    if _C.in_dry_run():
        raise RuntimeError(
            "torch.tpu.warmup: expected to be called outside of a call that is being warmed up, "
            "got called inside one"
        )
    start = time.perf_counter()
    _C.initialize()
    run = _C.DryRun()
    with _one_at_a_time:
        # What was asked for before is no part of the call, and is not to be put away half-done.
        for device in range(_C.device_count()):
            _C.synchronize(device)
        before = _C.statistics()
        for _ in range(_MAX_PASSES):
            epoch = _C.moving_views_epoch()
            _call_dry(run, fn, args, kwargs)
            if _C.moving_views_epoch() == epoch:
                break
        _warn_of_hollow_tensors()
    _wait(run)
    after = _C.statistics()
    compiled = min(after["compiles"] - before["compiles"], len(run))
    loaded = min(after["loads"] - before["loads"], len(run) - compiled)
    return WarmupReport(
        programs=len(run),
        compiled=compiled,
        loaded=loaded,
        ready=len(run) - compiled - loaded,
        seconds=time.perf_counter() - start,
    )


def _call_dry(
    run: _C.DryRun, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with _random_state_kept(), _HostState(), torch.autograd.set_multithreading_enabled(False):
        run.begin()
        try:
            fn(*args, **kwargs)
        except Exception as error:
            error.add_note(
                "This was in the dry run of torch.tpu.warmup, where nothing is computed and "
                "values read from the device are zeros."
            )
            raise
        finally:
            run.end()


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(range(_C.device_count()), device_type="tpu"):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


class _HostState:
    """Puts back what training changes on the host: gradients, and the attributes of some objects.

    They are found by asking Python for every object there is: whatever way a call reaches them.
    """

    # Of these types, and how many levels of dictionaries and lists within an object's own.
    _LEVELS: ClassVar[dict[type, int]] = {
        torch.nn.Module: 1,
        torch.optim.Optimizer: 3,
        torch.optim.lr_scheduler.LRScheduler: 1,
        torch.amp.GradScaler: 2,
    }
    _KINDS = tuple(_LEVELS)

    def __enter__(self) -> None:
        # By identity: an object's container with a copy, and the object.
        self._containers: dict[int, tuple[Any, Any, object]] = {}
        self._scalars: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for item in live_objects(*self._KINDS):
            levels = max(self._LEVELS.get(t, 0) for t in type(item).__mro__)
            self._save(vars(item), levels, item)
        with torch._C.DisableTorchFunctionSubclass():
            for tensor in leaves():
                self._gradients[id(tensor)] = tensor, tensor.grad

    def __exit__(self, *error: object) -> None:
        self.put_back(lambda _: True)

    def put_back(self, owns: Callable[[object], bool]) -> None:
        """Put back what belongs to objects, or is the gradient of tensors, that ``owns`` takes."""
        for container, contents, owner in self._containers.values():
            if owns(owner):
                _put_back(container, contents)
        with torch.inference_mode():
            for scalar, saved in self._scalars.values():
                if not torch.equal(scalar, saved):
                    scalar.copy_(saved)
        with torch._C.DisableTorchFunctionSubclass():
            for tensor in leaves():
                gradient = self._gradients.get(id(tensor), (tensor, None))[1]
                if tensor.grad is not gradient and owns(tensor):
                    tensor.grad = gradient

    def before(self, container: Any) -> Any:
        """What a dictionary or list held; itself if it is none of those that are kept."""
        return (
            self._containers[id(container)][1] if id(container) in self._containers else container
        )

    def _save(self, value: Any, levels: int, owner: object) -> None:
        if type(value) in (dict, OrderedDict, defaultdict, list):
            if levels < 0 or id(value) in self._containers:
                return
            self._containers[id(value)] = value, value.copy(), owner
            for inner in value.values() if isinstance(value, dict) else value:
                self._save(inner, levels - 1, owner)
        elif type(value) is torch.Tensor and value.dim() == 0 and value.device.type == "cpu":
            # Such as an optimizer's count of steps, which is changed in place.
            self._scalars[id(value)] = value, value.detach().clone()


def _put_back(container: Any, copy: Any) -> None:
    # What has not changed is left alone: other threads may be reading it.
    if isinstance(container, list):
        if [id(item) for item in container] != [id(item) for item in copy]:
            container[:] = copy
    elif container.keys() != copy.keys() or any(container[key] is not copy[key] for key in copy):
        container.clear()
        container.update(copy)


def _warn_of_hollow_tensors() -> None:
    gc.collect()
    with torch._C.DisableTorchFunctionSubclass():
        hollow = [t for t in live_objects(torch.Tensor) if _C.is_hollow(t)]
    if not hollow:
        return
    sizes = ", ".join(str(shape) for shape in sorted(tuple(t.shape) for t in hollow)[:5])
    warnings.warn(
        f"torch.tpu.warmup: {len(hollow)} tensors that the call made are still referenced and hold "
        f"no data (sizes {sizes}{', ...' if len(hollow) > 5 else ''}). Using them raises an error: "
        "drop what keeps them, such as a cache that the call filled",
        stacklevel=3,
    )


def _wait(run: _C.DryRun) -> None:
    errors = []
    with _progress(len(run)) as advance:
        for place in range(len(run)):
            error = run.wait(place)
            if error is not None:
                errors.append(error)
            advance()
    if errors:
        _C.forget_failed_programs()
        raise RuntimeError(
            f"torch.tpu.warmup: {len(errors)} of {len(run)} programs could not be compiled. "
            f"The first: {errors[0]}"
        )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Gives what is to be called per program; on a terminal it shows how far things are."""
    if total == 0 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("compiling {task.completed}/{task.total} programs"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
