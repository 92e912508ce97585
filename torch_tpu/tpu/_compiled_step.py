"""What a training step is while it is compiled: its programs, and when they run."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torch_tpu import _C
from torch_tpu.tpu import _step_scaler
from torch_tpu.tpu._live_objects import leaves, live_objects, new_apart
from torch_tpu.tpu._microbatches import Microbatches
from torch_tpu.tpu._step_capture import Capture, NotYetError, OtherOptimizersError
from torch_tpu.tpu._step_entry import Arguments, Entry
from torch_tpu.tpu._step_numbers import Key, settings
from torch_tpu.tpu._step_optimizers import reachable_optimizers
from torch_tpu.tpu._step_watch import NotCapturableError

# How often in a row a step may be traced because something it was made for is another thing.
_MAX_TRACES = 12
# How often the first call may be traced because another optimizer is found to step.
_MAX_OPTIMIZERS = 6
_STANDARD = sysconfig.get_path("stdlib")
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class CompiledStep:
    """What :func:`compile_step` returns."""

    def __init__(
        self,
        fn: Callable[..., Any],
        accumulate: int,
        keep_gradients: bool,
        schedulers: Sequence[LRScheduler],
        max_programs: int,
        flags: dict[str, Any],
    ) -> None:
        self._fn = fn
        self._flags = flags
        self._accumulate = accumulate
        self._keep_gradients = keep_gradients
        self._schedulers = list(schedulers)
        self._max_programs = max_programs
        self._entries: list[Entry] = []
        self._optimizers: list[Optimizer] = []
        # What was changed for the optimizers to stay on the device.
        self._capturable: list[dict[str, Any]] = []
        self._moved: list[tuple[dict[str, Any], str]] = []
        # Settings of the optimizers as they were when the step was traced last, or first seen;
        # those that were seen to change, and those of them that cannot be operands.
        self._settings: dict[Key, Any] = {}
        self._varying: set[Key] = set()
        self._constant: set[Key] = set()
        # Whether the optimizers that step are known, and have their state.
        self._warm = self._tried_at_once = False
        self._traces = 0
        self._not_yet = 0
        # Whether equal step counts are one value: not where they part at every call.
        self._shares_counts = True
        self._reason: str | None = None
        with contextlib.suppress(AttributeError):
            functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        if self._reason is not None:
            return f"<compile_step of {name}, eager: {self._reason}>"
        return f"<compile_step of {name}, programs: {len(self._entries)}>"

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
                + (f": {self._reason}" if self._reason else "; call the step before")
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
        if self._reason is not None or _C.in_dry_run() or _C.checks_nan():
            return self._eagerly(args, kwargs)
        arguments = Arguments(args, kwargs)
        if len({t.device for t in arguments.tensors}) > 1:
            self._give_up("its arguments are on several devices", None)
            return self._eagerly(args, kwargs)
        if not self._warm:
            entry = self._traced_at_once(arguments)
            return self._first(args, kwargs) if entry is None else self._begin(entry, arguments)
        changed = ""  # since the program that was used last
        for place, entry in enumerate(self._entries):
            if entry.key != arguments.key:
                changed = changed or entry.other_arguments(arguments)
                continue
            reason = entry.why_not()
            if reason is not None:
                changed = changed or reason
                continue
            result = entry.run(arguments.tensors)
            if result is None:
                reason = entry.program.why_not()
                if reason and self._traces > 1:
                    self._shares_counts = False
                changed = changed or reason or entry.other_arguments(arguments)
            else:
                if place:
                    self._entries.insert(0, self._entries.pop(place))
                self._traces = 0
                return result[0]
        self._traces += 1
        if self._traces > _MAX_TRACES:
            self._give_up(
                f"it was traced {_MAX_TRACES} times in a row; what changed the last time: "
                + (changed or "unknown"),
                None,
            )
            return self._eagerly(args, kwargs)
        return self._capture(args, kwargs, arguments, changed)

    def _eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = Arguments(args, kwargs).restored()  # on the device
        if self._accumulate == 1:
            return self._fn(*args, **kwargs)
        return Microbatches(self._fn, self._accumulate, traced=False).run(args, kwargs)

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs eagerly, to find the optimizers and let them make their state."""
        self._tried_at_once = True
        gradients = {id(p): p.grad for p in leaves()}
        stepped: list[Optimizer] = []
        skipped: list[Optimizer] = []
        with contextlib.ExitStack() as stack:
            # Optimizers that step in hooks of a backward pass do it on this thread then.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            here = threading.get_ident()

            def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
                if threading.get_ident() == here:
                    stepped.append(optimizer)
                    self._note_optimizer(optimizer)

            stack.callback(register_optimizer_step_pre_hook(note).remove)
            for scaler in _step_scaler.existing():
                stack.enter_context(_step_scaler.noticing_skips(scaler, skipped))
            result = self._eagerly(args, kwargs)
        # An optimizer that a GradScaler has held back has no state yet.
        self._warm = all(any(o is known for known in self._optimizers) for o in skipped)
        outlives = self._outliving_gradients([*stepped, *skipped])
        for p in leaves():
            if p.grad is not None and gradients.get(id(p)) is not p.grad and not outlives(p):
                p.grad = None
        return result

    def _outliving_gradients(
        self, optimizers: Iterable[Optimizer]
    ) -> Callable[[torch.Tensor], bool]:
        """Whose gradients, made in the step, outlive it: those that no optimizer in it has used."""
        used = {
            id(p)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        return lambda p: self._keep_gradients or id(p) not in used

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
            for group, name, value in settings(optimizer):
                self._settings[id(group), name] = value

    def _note_settings(self) -> None:
        """Finds the settings that change from call to call."""
        for optimizer in self._optimizers:
            for group, name, value in settings(optimizer):
                key = id(group), name
                if self._settings.get(key, value) != value and key not in self._constant:
                    self._varying.add(key)
                self._settings[key] = value

    # --- Tracing ----------------------------------------------------------------------------------

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
        changed: str,
    ) -> Any:
        try:
            self._note_settings()
            entry = self._traced(arguments)
        except NotYetError as error:
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
        self._entries = [e for e in self._entries if not e.guards.obsolete()]
        return self._begin(entry, arguments, changed)

    def _begin(self, entry: Entry, arguments: Arguments, reason: str = "") -> Any:
        self._entries = [entry, *self._entries[: self._max_programs - 1]]
        result = entry.run(arguments.tensors, reason)
        if result is None:
            raise RuntimeError("torch.tpu.compile_step: the step changed its own arguments' layout")
        return result[0]

    def _traced(self, arguments: Arguments) -> Entry:
        try:
            return Capture(self, arguments, self._optimizers).entry
        except NotCapturableError:
            if not self._varying:
                raise
            # It may be that an optimizer takes a setting as nothing but a Python number.
            self._constant |= self._varying
            self._varying.clear()
            return Capture(self, arguments, self._optimizers).entry

    def _traced_at_once(self, arguments: Arguments) -> Entry | None:
        """The program, traced at the first call; None where that has to run eagerly.

        Then everything is as it was. What is wrong with the step, if something is, shows there.
        """
        if self._tried_at_once:
            return None
        self._tried_at_once = True
        with new_apart():
            if _step_scaler.existing():
                return None  # whether its optimizers step at all is not known
            optimizers = reachable_optimizers(self._fn)
            moved = list(self._moved)
            for _ in range(_MAX_OPTIMIZERS):
                self._expect_cycles(optimizers)
                try:
                    entry = Capture(self, arguments, optimizers, first=True).entry
                except OtherOptimizersError as error:
                    optimizers = error.optimizers
                except Exception:
                    break
                except BaseException:  # the caller's, such as KeyboardInterrupt
                    self._moved = moved
                    self._varying.clear()
                    raise
                else:
                    for optimizer in optimizers:
                        self._note_optimizer(optimizer)
                    self._warm = True
                    return entry
                self._moved = list(moved)
            self._moved = moved
            self._varying.clear()
        return None

    def _expect_cycles(self, optimizers: list[Optimizer]) -> None:
        """Some schedulers are known to change more than the rate."""
        for scheduler in live_objects(LRScheduler):
            if not getattr(scheduler, "cycle_momentum", False):
                continue
            for optimizer in optimizers:
                if getattr(scheduler, "optimizer", None) is optimizer:
                    for group in optimizer.param_groups:
                        name = "momentum" if "momentum" in group else "betas"
                        if name in group:
                            self._varying.add((id(group), name))

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

    def _restore_capturable(self) -> None:
        """A checkpoint with the setting would not go on where there is no such device."""
        for group in self._capturable:
            group["capturable"] = False
        self._capturable.clear()

    def _give_up(self, reason: str, error: BaseException | None) -> None:
        self._reason = reason
        self._entries.clear()
        self._restore_capturable()
        for state, name in self._moved:
            if isinstance(state.get(name), torch.Tensor):
                state[name] = state[name].cpu()
        self._moved.clear()
        warnings.warn(
            f"torch.tpu.compile_step: {_where(self._fn, error)}: the step cannot be one program: "
            f"{reason}. It runs eagerly from now on, with the same results.",
            stacklevel=5,
        )


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
