"""A training step as one program."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import random
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.tpu._microbatches import Microbatches
from torch_tpu.tpu._step_watch import NotCapturableError, Watch, adafactor_step
from torch_tpu.tpu._warmup import _HostState, _leaves, _tensors

# How often in a row a step may be traced because something it was made for is another thing.
_MAX_TRACES = 12
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_STANDARD = sysconfig.get_path("stdlib")
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class _NotYetError(Exception):
    """The step did what only the first ones do: it has to run eagerly once more."""


def compile_step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    accumulate: int = 1,
    keep_gradients: bool = False,
    schedulers: Sequence[LRScheduler] = (),
    max_programs: int = 8,
) -> Any:
    """Make a training step one program, in which parameters and optimizer state are donated.

    ``fn`` is plain PyTorch: it clears gradients, runs the model, calls ``backward()``, clips, calls
    ``step()`` of optimizers. Its first call runs eagerly, the second one is traced: operators are
    lowered instead of being executed, autograd and the optimizers do what they always do. From
    then on a call runs the program, and none of the Python code.

    Can be used as a decorator, with or without arguments.

    Args:
        fn: The step. Tensors among its arguments may hold other values at every call; everything
            else is part of what a program is made for.
        accumulate: Split the batch (the tensors' first dimension) into so many parts; their
            gradients are averaged before the optimizer steps.
        keep_gradients: Leave gradients in ``p.grad``. Without, gradients that were made in the step
            for an optimizer that steps in it exist only in the program, and ``p.grad`` is None
            afterwards.
        schedulers: Learning rate schedulers to be stepped after every call. The step may do so
            itself instead.
        max_programs: How many programs are kept, for different shapes or settings.

    Returns:
        A callable like ``fn``. The tensors it returns have no graph.
    """
    if fn is None:
        return functools.partial(
            compile_step,
            accumulate=accumulate,
            keep_gradients=keep_gradients,
            schedulers=schedulers,
            max_programs=max_programs,
        )
    if not callable(fn):
        raise TypeError(
            f"torch.tpu.compile_step: expected a callable, got {type(fn).__name__}; pass the "
            "function that makes one training step, not what a call of it gives"
        )
    if accumulate < 1:
        raise ValueError(f"torch.tpu.compile_step: expected accumulate >= 1, got {accumulate}")
    return CompiledStep(fn, accumulate, keep_gradients, schedulers, max_programs)


class _Arguments:
    """A call's arguments: tensors apart from the rest."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.leaves = [
            leaf.to("tpu") if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf
            for leaf in leaves
        ]
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        rest = tuple(
            None
            if isinstance(leaf, torch.Tensor)
            else (type(leaf), leaf)
            if isinstance(leaf, _PLAIN)
            else id(leaf)
            for leaf in self.leaves
        )
        self.key = (
            self.spec,
            rest,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("tpu"),
            torch.get_autocast_dtype("tpu"),
        )

    def restored(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args, kwargs


class _Entry:
    """A program, and what it was made for."""

    key: Any
    guards: _C.StepGuards
    program: _C.StepProgram
    # Objects whose identity is part of the key, so that no other takes their place.
    objects: list[Any]
    # Optimizers with the number of their groups, and the groups whose rate is an operand.
    optimizers: list[tuple[Optimizer, int]]
    rates: list[dict[str, Any]]
    # What p.grad is afterwards, where it changes.
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]]
    # Calls the step made that run on the host, afterwards: a bound method, its arguments with the
    # tensors replaced by places among the results.
    after: list[tuple[Callable[..., Any], Any]]
    num_results: int
    leaves: list[Any]
    spec: Any

    def why_not(self) -> str | None:
        """What is not as it was when the step was traced."""
        for optimizer, groups in self.optimizers:
            if len(optimizer.param_groups) != groups:
                return f"the number of {type(optimizer).__name__}'s parameter groups"
        return self.guards.check()

    def run(self, inputs: list[torch.Tensor]) -> tuple[Any] | None:
        """Runs the program; None when it is not for these inputs."""
        results = self.program.run(inputs, [float(group["lr"]) for group in self.rates])
        if results is None:
            return None
        for tensor, gradient in self.gradients:
            tensor.grad = gradient
        returned = iter(results[: self.num_results])
        leaves = [next(returned) if leaf is _RESULT else leaf for leaf in self.leaves]
        extra = results[self.num_results :]
        for method, arguments in self.after:
            args, kwargs = pytree.tree_map(
                lambda value: extra[value.index] if isinstance(value, _Place) else value, arguments
            )
            method(*args, **kwargs)
        return (pytree.tree_unflatten(leaves, self.spec),)


class _Place:
    def __init__(self, index: int) -> None:
        self.index = index


_RESULT = object()


class CompiledStep:
    """What :func:`compile_step` returns."""

    def __init__(
        self,
        fn: Callable[..., Any],
        accumulate: int,
        keep_gradients: bool,
        schedulers: Sequence[LRScheduler],
        max_programs: int,
    ) -> None:
        self._fn = fn
        self._accumulate = accumulate
        self._keep_gradients = keep_gradients
        self._schedulers = list(schedulers)
        self._max_programs = max_programs
        self._entries: list[_Entry] = []
        self._optimizers: list[Optimizer] = []
        # What was changed for the optimizers to stay on the device.
        self._capturable: list[dict[str, Any]] = []
        self._moved: list[tuple[dict[str, Any], str]] = []
        self._warm = False
        self._traces = 0
        self._not_yet = 0
        self._reason: str | None = None
        with contextlib.suppress(AttributeError):
            functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        result = self._run(args, kwargs)
        for scheduler in self._schedulers:
            scheduler.step()
        return result

    @property
    def fallback_reason(self) -> str | None:
        """Why the step runs eagerly; None while it does not, or has not been traced."""
        return self._reason

    @property
    def num_programs(self) -> int:
        """Programs made so far and still kept."""
        return len(self._entries)

    def text(self) -> str:
        """The StableHLO of the program that was used last."""
        if not self._entries:
            raise RuntimeError(
                "torch.tpu.compile_step: there is no program yet"
                + (f": {self._reason}" if self._reason else "; call the step twice before")
            )
        text: str = self._entries[0].program.text()
        return text

    def reset(self) -> None:
        """Forget the programs: the next call is traced, whatever failed before."""
        self._entries.clear()
        self._reason = None
        self._traces = self._not_yet = 0

    # --- Running ----------------------------------------------------------------------------------

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._reason is not None or _C.in_dry_run():
            return self._eagerly(args, kwargs)
        if not self._warm:
            return self._first(args, kwargs)
        arguments = _Arguments(args, kwargs)
        changed = None
        for place, entry in enumerate(self._entries):
            if entry.key != arguments.key:
                continue
            changed = entry.why_not()
            if changed is not None:
                continue
            result = entry.run(arguments.tensors)
            if result is not None:
                if place:
                    self._entries.insert(0, self._entries.pop(place))
                self._traces = 0
                return result[0]
        self._traces += 1
        if self._traces > _MAX_TRACES:
            self._give_up(
                f"it was traced {_MAX_TRACES} times in a row; what changed the last time: "
                + (changed or "the shapes of its arguments"),
                None,
            )
            return self._eagerly(args, kwargs)
        return self._capture(args, kwargs, arguments)

    def _eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = _Arguments(args, kwargs).restored()  # on the device
        if self._accumulate == 1:
            return self._fn(*args, **kwargs)
        return Microbatches(self._fn, self._accumulate, traced=False).run(args, kwargs)

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs eagerly, to find the optimizers and let them make their state."""
        gradients = {id(p): p.grad for p in _plain_leaves()}
        handle = register_optimizer_step_pre_hook(self._note_optimizer)
        try:
            result = self._eagerly(args, kwargs)
        finally:
            handle.remove()
        self._warm = True
        outlives = self._outliving_gradients()
        for p in _plain_leaves():
            if p.grad is not None and gradients.get(id(p)) is not p.grad and not outlives(p):
                p.grad = None
        return result

    def _outliving_gradients(self) -> Callable[[torch.Tensor], bool]:
        """Whose gradients, made in the step, outlive it: those that no optimizer in it has used."""
        used = {
            id(p)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        return lambda p: self._keep_gradients or id(p) not in used

    def _note_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)

    # --- Tracing ----------------------------------------------------------------------------------

    def _capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: _Arguments) -> Any:
        try:
            for optimizer in self._optimizers:
                self._make_capturable(optimizer)
            entry = _Capture(self, arguments).entry
        except _NotYetError as error:
            self._not_yet += 1
            if self._not_yet > 3:
                self._give_up(str(error), None)
                return self._eagerly(args, kwargs)
            return self._first(args, kwargs)
        except NotCapturableError as error:
            self._give_up(str(error), error.__cause__ or error)
            return self._eagerly(args, kwargs)
        self._not_yet = 0
        # Those that were made for tensors that have been replaced would keep them alive.
        current = [e for e in self._entries if not e.guards.obsolete()]
        self._entries = [entry, *current[: self._max_programs - 1]]
        result = entry.run(arguments.tensors)
        if result is None:
            raise RuntimeError("torch.tpu.compile_step: the step changed its own arguments' layout")
        return result[0]

    def _make_capturable(self, optimizer: Optimizer) -> None:
        """The state on the device, and the implementation that leaves it there."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise NotCapturableError(
                "torch.optim.LBFGS decides by the values of the loss how often to evaluate it"
            )
        for group in optimizer.param_groups:
            if "capturable" in group and not group["capturable"]:
                group["capturable"] = True
                self._capturable.append(group)
        for p, state in optimizer.state.items():
            if not isinstance(p, torch.Tensor) or p.device.type != "tpu":
                continue
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                    dtype = torch.float64 if p.dtype == torch.float64 else value.dtype
                    state[name] = value.to(p.device, dtype)
                    self._moved.append((state, name))

    def _give_up(self, reason: str, error: BaseException | None) -> None:
        self._reason = reason
        self._entries.clear()
        for group in self._capturable:
            group["capturable"] = False
        for state, name in self._moved:
            if isinstance(state.get(name), torch.Tensor):
                state[name] = state[name].cpu()
        self._moved.clear()
        self._capturable.clear()
        warnings.warn(
            f"torch.tpu.compile_step: {_where(self._fn, error)}: the step cannot be one program: "
            f"{reason}. It runs eagerly from now on, with the same results.",
            stacklevel=5,
        )


def _plain_leaves() -> Iterator[torch.Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        yield from list(_leaves())


def _where(fn: Callable[..., Any], error: BaseException | None) -> str:
    """The line of the user's code at which the error came up, as file:line."""
    while error is not None:
        traceback, found = error.__traceback__, None
        while traceback is not None:
            filename = traceback.tb_frame.f_code.co_filename
            if not _is_library(filename):
                found = f"{filename}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        if found:
            return found
        error = error.__cause__
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def _is_library(filename: str) -> bool:
    if filename.startswith(_STANDARD):
        return "site-packages" not in filename
    return filename.startswith(("<", *_LIBRARIES))


class _Capture:
    """One attempt to trace the step. `entry` is what came of it."""

    def __init__(self, step: CompiledStep, arguments: _Arguments) -> None:
        self.step = step
        self.arguments = arguments
        self.trace = _C.StepTrace(arguments.tensors)
        self.watch = Watch()
        self.modules: list[torch.nn.Module] = []
        self.stepped: list[tuple[LRScheduler, Any]] = []
        self.rates: list[tuple[dict[str, Any], torch.Tensor]] = []
        self.value: Any = None
        self.randomness = _Randomness()
        host = _HostState()
        torch.clear_autocast_cache()
        host.__enter__()
        self.host = host
        try:
            self.entry = self._trace()
        except BaseException:
            self.trace.end()
            host.__exit__()
            self.randomness.put_back()
            raise
        finally:
            self.trace.end()
            torch.clear_autocast_cache()

    def _trace(self) -> _Entry:
        step, trace = self.step, self.trace
        states = _states(step._optimizers)
        before = {id(p): (p, p.grad) for p in _plain_leaves()}
        failure: Exception | None = None
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            # Libraries ask torch.compiler.is_compiling() whether to leave out checks of values.
            stack.enter_context(torch.compiler._compile_session_context())
            if "torch._dynamo" in sys.modules:
                # Compiled functions become a part of this program, operator by operator.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._take_rates(stack)
            self._watch_python(stack)
            try:
                trace.begin()
                with self.watch:
                    self.value = self._call()
            except Exception as error:
                failure = error
            finally:
                trace.pause()
            if self.watch.refusal is not None:
                raise self.watch.refusal
            if trace.refusal:
                raise NotCapturableError(_explained(trace.refusal)) from failure
            if isinstance(failure, (NotCapturableError, _NotYetError)):
                raise failure
            if failure is not None:
                if self.watch.in_optimizer:
                    raise NotCapturableError(str(failure)) from failure
                raise failure
            self.randomness.check()
            for group, rate in self.rates:
                if group["lr"] is not rate or rate._version:
                    raise NotCapturableError(
                        "it changes the learning rate itself; use a scheduler of "
                        "torch.optim.lr_scheduler, or change it between the calls"
                    )
        self._check_states(states)
        return self._finish(before)

    def _call(self) -> Any:
        args, kwargs = self.arguments.restored()
        if self.step._accumulate == 1:
            return self.step._fn(*args, **kwargs)
        return Microbatches(self.step._fn, self.step._accumulate, traced=True).run(args, kwargs)

    def _take_rates(self, stack: contextlib.ExitStack) -> None:
        """Learning rates become operands: each is a tensor of the program while it is traced."""
        for optimizer in self.step._optimizers:
            for group in optimizer.param_groups:
                rate = group.get("lr")
                if rate is None or (isinstance(rate, torch.Tensor) and rate.device.type == "tpu"):
                    continue
                doubles = any(p.dtype == torch.float64 for p in group["params"])
                operand = self.trace.number_input(doubles)
                self.rates.append((group, operand))
                group["lr"] = operand
                stack.callback(group.__setitem__, "lr", rate)

    def _watch_python(self, stack: contextlib.ExitStack) -> None:
        """Learns which optimizers are used; schedulers' steps are put off."""

        def enter_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not any(optimizer is known for known in self.step._optimizers):
                raise _NotYetError(f"a {type(optimizer).__name__} steps that did not before")
            if self.stepped:
                raise NotCapturableError("a scheduler is stepped before an optimizer")
            self.watch.in_optimizer += 1

        def leave_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.watch.in_optimizer -= 1

        for handle in (
            register_optimizer_step_pre_hook(enter_optimizer),
            register_optimizer_step_post_hook(leave_optimizer),
        ):
            stack.callback(handle.remove)
        for optimizer in self.step._optimizers:
            if type(optimizer) is torch.optim.Adafactor:
                method = types.MethodType(adafactor_step, optimizer)
                stack.enter_context(_attribute(optimizer, "step", method))
        for scheduler in _schedulers_of(self.step._optimizers):

            def put_off(*args: Any, _scheduler: LRScheduler = scheduler, **kwargs: Any) -> None:
                self.stepped.append((_scheduler, (args, kwargs)))

            stack.enter_context(_attribute(scheduler, "step", put_off))
            stack.enter_context(_attribute(scheduler, "get_last_lr", _no_last_rate))

    # --- What came of it --------------------------------------------------------------------------

    def _check_states(self, before: dict[tuple[int, Any, str], Any]) -> None:
        for key, value in _states(self.step._optimizers).items():
            if key not in before:
                raise _NotYetError("an optimizer makes new state at every call")
            if value is before[key]:
                continue
            if isinstance(value, torch.Tensor) and isinstance(before[key], torch.Tensor):
                self._carry(before[key], value, "the state of an optimizer")
            else:
                raise NotCapturableError(
                    f"an optimizer keeps {key[2]!r} in its state as a Python object, and changes it"
                )

    def _carry(self, old: torch.Tensor, new: torch.Tensor, what: str) -> None:
        """What replaces a tensor is written to it, for the next call to find it there."""
        if not (
            self.trace.made_here(new)
            and old.device == new.device
            and old.shape == new.shape
            and old.dtype == new.dtype
            and not old.requires_grad
        ):
            raise NotCapturableError(f"{what} is replaced by a tensor of another kind")
        # A scope of its own: the trace was paused.
        self.trace.begin()
        try:
            with torch.no_grad():
                old.copy_(new)
        finally:
            self.trace.pause()

    def _finish(self, before: dict[int, tuple[torch.Tensor, torch.Tensor | None]]) -> _Entry:
        trace, step, entry = self.trace, self.step, _Entry()
        self.modules = _modules_with(trace.has_taken_in)
        kept = self._check_modules()
        leaves, entry.spec = pytree.tree_flatten(self.value)
        results = [self._result(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        entry.leaves = [_RESULT if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        entry.num_results = len(results)
        # The method is the class's again by now.
        entry.after = [
            (
                scheduler.step,
                pytree.tree_map(lambda value: self._place(value, results, entry), arguments),
            )
            for scheduler, arguments in self.stepped
        ]
        del leaves, self.value, self.stepped
        entry.gradients = []
        outlives = step._outliving_gradients()
        for p in _plain_leaves():
            _, old = before.get(id(p), (p, None))
            if p.grad is old:
                continue
            if p.device.type != "tpu":
                raise NotCapturableError("it computes gradients on the CPU")
            if p.grad is not None and outlives(p):
                gradient = p.grad.detach()
                kept.append(gradient)
                entry.gradients.append((p, gradient))
            else:
                entry.gradients.append((p, None))
            p.grad = None
        gc.collect()
        self._check_survivors([*results, *kept, *(rate for _, rate in self.rates)])
        entry.key = self.arguments.key
        entry.objects = [o for o in self.arguments.leaves if not isinstance(o, torch.Tensor)]
        entry.optimizers = [(o, len(o.param_groups)) for o in step._optimizers]
        entry.rates = [group for group, _ in self.rates]
        entry.guards = self._guards(before, {id(p) for p, _ in entry.gradients})
        entry.program = trace.finish(results, kept)
        trace.end()
        try:
            entry.program.wait()
        except RuntimeError as error:
            raise NotCapturableError(f"the compiler refuses the program: {error}") from error
        return entry

    def _result(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "tpu":
            raise NotCapturableError("it returns a tensor on the CPU, which would be a constant")
        return t.detach() if self.trace.made_here(t) else t

    def _place(self, value: Any, results: list[torch.Tensor], entry: _Entry) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        results.append(self._result(value))
        return _Place(len(results) - entry.num_results - 1)

    def _check_modules(self) -> list[torch.Tensor]:
        """What the step has changed in the modules it called, beyond the contents of tensors.

        Returns the tensors that are new there.
        """
        kept: list[torch.Tensor] = []
        for module in self.modules:
            containers: tuple[dict[str, Any], ...] = (
                vars(module),
                module._parameters,
                module._buffers,
            )
            for container in containers:
                _, copy = self.host._containers.get(id(container), (None, container))
                for key, now in list(container.items()):
                    old = copy.get(key)
                    what = f"{key!r} of {type(module).__name__}"
                    if now is old:
                        continue
                    if not isinstance(now, torch.Tensor):
                        if key in copy and isinstance(now, _PLAIN) and now != old:
                            raise NotCapturableError(
                                f"{what} changes in the step, from {old!r} to {now!r}"
                            )
                    elif isinstance(old, torch.Tensor):
                        self._carry(old, now, what)
                        container[key] = old
                    elif self.trace.made_here(now):
                        container[key] = now.detach()
                        kept.append(container[key])
        return kept

    def _check_survivors(self, known: list[torch.Tensor]) -> None:
        ours = {id(t) for t in known}
        with torch._C.DisableTorchFunctionSubclass():
            held = [
                tuple(t.shape) for t in _tensors() if self.trace.made_here(t) and id(t) not in ours
            ]
        if held:
            raise NotCapturableError(
                f"{len(held)} tensors that it makes are kept outside (sizes {held[:4]}), in a list "
                "or a variable that outlives it; return them instead"
            )

    def _guards(
        self,
        before: dict[int, tuple[torch.Tensor, torch.Tensor | None]],
        changed: set[int],
    ) -> _C.StepGuards:
        guards = _C.StepGuards()
        tensors: dict[int, torch.Tensor] = {}
        for module in self.modules:
            for name, value in vars(module).items():
                if isinstance(value, _PLAIN):
                    guards.add(vars(module), name, value, True)
                elif isinstance(value, torch.Tensor):
                    guards.add(vars(module), name, value, False)
            for name, p in module._parameters.items():
                guards.add(module._parameters, name, p, False)
                if p is not None:
                    tensors[id(p)] = p
            for name, b in module._buffers.items():
                guards.add(module._buffers, name, b, False)
                if b is not None:
                    tensors[id(b)] = b
        for optimizer in self.step._optimizers:
            guards.add(vars(optimizer), "state", optimizer.state, False)
            guards.add(vars(optimizer), "param_groups", optimizer.param_groups, False)
            for group in optimizer.param_groups:
                for name, value in group.items():
                    if name == "params" or isinstance(value, torch.Tensor):
                        guards.add(group, name, value, False)
                    elif name not in ("lr", "initial_lr", "max_lr", "min_lr"):
                        guards.add(group, name, value, True)
                for p in group["params"]:
                    tensors[id(p)] = p
            for state in optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor):
                        guards.add(state, name, value, False)
        for identity in changed:
            tensors[identity] = before[identity][0]
        for identity, tensor in tensors.items():
            if tensor.device.type != "tpu":
                continue
            gradient = before.get(identity, (tensor, None))[1]
            if not (tensor.requires_grad and tensor.is_leaf):
                guards.add_tensor(tensor, "any")
            elif gradient is None:
                guards.add_tensor(tensor, "none")
            elif self.trace.has_taken_in(gradient):
                guards.add_tensor(tensor, "same")
            else:
                guards.add_tensor(tensor, "any")
        return guards


def _modules_with(used: Callable[[torch.Tensor], bool]) -> list[torch.nn.Module]:
    """The modules that have a used parameter or buffer, or a module below that has, or one above.

    Of all that exist: however the step comes by them.
    """
    existing = [
        o
        for o in gc.get_objects()
        if issubclass(type(o), torch.nn.Module) and isinstance(vars(o).get("_buffers"), dict)
    ]
    owners = {
        id(module)
        for module in existing
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None and used(tensor)
    }
    found: dict[int, torch.nn.Module] = {}
    for module in existing:
        below = list(module.modules())
        if any(id(part) in owners for part in below):
            found.update((id(part), part) for part in below)
    return list(found.values())


def _explained(refusal: str) -> str:
    return refusal.replace(" while an operator is being traced", "")


def _no_last_rate() -> Any:
    raise NotCapturableError("get_last_lr() gives a number that would be the same at every call")


def _states(optimizers: list[Optimizer]) -> dict[tuple[int, Any, str], Any]:
    """The entries of the optimizers' states."""
    return {
        (id(optimizer), id(p), name): value
        for optimizer in optimizers
        for p, state in optimizer.state.items()
        if isinstance(state, dict)
        for name, value in state.items()
    }


def _schedulers_of(optimizers: list[Optimizer]) -> list[LRScheduler]:
    return [
        o
        for o in gc.get_objects()
        if issubclass(type(o), LRScheduler)
        and any(getattr(o, "optimizer", None) is optimizer for optimizer in optimizers)
    ]


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Puts an attribute on an object for a time."""
    missing = object()
    old = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


class _Randomness:
    """The random state of the host, for an attempt that fails."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules.get("numpy")
        self._numpy_state: Any = self._numpy.random.get_state() if self._numpy else None
        self._torch = torch.get_rng_state()

    def check(self) -> None:
        """Numbers of these generators would be the same at every call."""
        if random.getstate() != self._python:
            raise NotCapturableError("it draws random numbers from Python's module random")
        if self._numpy is not None:
            kind, words, *rest = self._numpy.random.get_state()
            old_kind, old_words, *old_rest = self._numpy_state
            if (kind, rest) != (old_kind, old_rest) or (words != old_words).any():
                raise NotCapturableError("it draws random numbers from NumPy")

    def put_back(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.random.set_state(self._numpy_state)
        torch.set_rng_state(self._torch)
