"""What a training step is while it is compiled: its programs, and when they run."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sysconfig
import threading
import warnings
import weakref
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
from torch_tpu.tpu._step_capture import Capture
from torch_tpu.tpu._step_entry import Arguments, Entry
from torch_tpu.tpu._step_errors import (
    CountsError,
    DisturbedError,
    NotCapturableError,
    NotYetError,
    OtherOptimizersError,
)
from torch_tpu.tpu._step_numbers import Key, settings
from torch_tpu.tpu._step_reach import Held, module_on_cpu, reachable_optimizers

# How often in a row a step may be traced because something it was made for is another thing.
_MAX_TRACES = 12
# How often the first call may be traced because another optimizer is found to step.
_MAX_OPTIMIZERS = 6
# How often it may be traced in a call because another number on the host is found to change.
_MAX_COUNTS = 3
# How many calls in a row it may fail because of what another thread seems to have done.
_MAX_DISTURBED = 4
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
        self._known: list[weakref.ref[Optimizer]] = []
        # What was changed for the optimizers to stay on the device.
        self._capturable: list[dict[str, Any]] = []
        self._moved: list[tuple[weakref.ref[Optimizer], dict[str, Any], str]] = []
        # Settings of the optimizers as they were when the step was traced last, or first seen;
        # those that were seen to change, and those of them that cannot be operands.
        self._settings: dict[Key, Any] = {}
        self._varying: set[Key] = set()
        self._constant: set[Key] = set()
        # Whether the optimizers that step are known, and have their state.
        self._warm = self._tried_at_once = False
        self._traces = 0
        self._not_yet = self._disturbed = 0
        # Whether equal step counts are one value: not where they part at every call.
        self._shares_counts = True
        # Whether gradients that the step begins with are others at every call.
        self._gradients_move = False
        # Numbers on the host that it changes, by where they are.
        self._counts: dict[tuple[int, Any], Held] = {}
        self._warned_of_growth = False
        # What an attempt that failed has taken a value from.
        self._lost: str | None = None
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
        try:
            result = self._run(args, kwargs)
        except RuntimeError as error:
            if "same device" in str(error) and (where := module_on_cpu(self._fn)) is not None:
                error.add_note(
                    f"torch.tpu.compile_step: {where} is on the CPU, and a step's arguments are "
                    'on the device; move the model before its optimizer is made: model.to("tpu")'
                )
            raise
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
        self._traces = self._not_yet = self._disturbed = 0

    # --- Running ----------------------------------------------------------------------------------

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = Arguments(args, kwargs)
        if self._reason is not None or _C.in_dry_run() or _C.checks_nan():
            return self._eagerly(arguments)
        if len({t.device for t in arguments.tensors}) > 1:
            self._give_up("its arguments are on several devices", None)
            return self._eagerly(arguments)
        if not self._warm:
            entry = self._traced_at_once(arguments)
            return self._first(arguments) if entry is None else self._begin(entry, arguments)
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
                if self._traces > 1 and entry.program.has_parted:
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
            return self._eagerly(arguments)
        return self._capture(arguments, changed)

    def _eagerly(self, arguments: Arguments) -> Any:
        args, kwargs = arguments.restored()
        if self._accumulate == 1:
            return self._fn(*args, **kwargs)
        return Microbatches(self._fn, self._accumulate, traced=False).run(args, kwargs)

    def _first(self, arguments: Arguments) -> Any:
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
            result = self._eagerly(arguments)
        # An optimizer that a GradScaler has held back has no state yet.
        self._warm = all(any(o is known for known in self._optimizers()) for o in skipped)
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

    def _optimizers(self) -> list[Optimizer]:
        """Those that have stepped in the step, and are still there: it keeps none of them."""
        return [o for o in (known() for known in self._known) if o is not None]

    def _forget_the_gone(self) -> None:
        """What optimizers have left that are no more."""
        self._known = [known for known in self._known if known() is not None]
        self._moved = [moved for moved in self._moved if moved[0]() is not None]
        groups = {id(group) for o in self._optimizers() for group in o.param_groups}
        self._settings = {k: v for k, v in self._settings.items() if k[0] in groups}
        self._varying = {k for k in self._varying if k[0] in groups}
        self._constant = {k for k in self._constant if k[0] in groups}
        self._entries = [e for e in self._entries if not e.orphaned()]

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        if not any(optimizer is known for known in self._optimizers()):
            self._known.append(weakref.ref(optimizer))
            for group, name, value in settings(optimizer):
                self._settings[id(group), name] = value

    def _note_settings(self) -> None:
        """Finds the settings that change from call to call."""
        for optimizer in self._optimizers():
            for group, name, value in settings(optimizer):
                key = id(group), name
                if self._settings.get(key, value) != value and key not in self._constant:
                    self._varying.add(key)
                self._settings[key] = value

    # --- Tracing ----------------------------------------------------------------------------------

    def _capture(self, arguments: Arguments, changed: str) -> Any:
        if any(entry.gradients_have_moved() for entry in self._entries):
            self._gradients_move = True
            # They were made for gradients that are gone.
            self._entries = [e for e in self._entries if not e.gradients_have_moved()]
        if any(entry.other_holder() for entry in self._entries):
            gc.collect()  # an optimizer that was replaced: with a scheduler it is in a cycle
        self._forget_the_gone()
        try:
            self._note_settings()
            entry = self._traced(arguments)
        except NotYetError as error:
            self._give_up_what_loses()
            self._not_yet += 1
            if self._not_yet > 3 and self._reason is None:
                self._give_up(str(error), None)
                return self._eagerly(arguments)
            return self._first(arguments)
        except NotCapturableError as error:
            self._give_up_what_loses()
            self._disturbed += 1
            passes = isinstance(error, DisturbedError) and self._disturbed <= _MAX_DISTURBED
            if not passes and self._reason is None:
                self._give_up(str(error), error.__cause__ or error)
            return self._eagerly(arguments)
        self._not_yet = self._disturbed = 0
        # Those that were made for tensors that have been replaced would keep them alive.
        self._entries = [e for e in self._entries if not e.obsolete()]
        return self._begin(entry, arguments, changed)

    def _begin(self, entry: Entry, arguments: Arguments, reason: str = "") -> Any:
        self._entries = [entry, *self._entries[: self._max_programs - 1]]
        result = entry.run(arguments.tensors, reason)
        if result is None:
            raise RuntimeError("torch.tpu.compile_step: the step changed its own arguments' layout")
        if entry.again:
            self._entries.remove(entry)
        if entry.once:
            self._give_up(entry.once, None)
        return result[0]

    def _traced(self, arguments: Arguments) -> Entry:
        try:
            return self._traced_with_counts(arguments)
        except NotCapturableError:
            if not self._varying or self._lost is not None:
                raise
            # It may be that an optimizer takes a setting as nothing but a Python number.
            self._constant |= self._varying
            self._varying.clear()
            return self._traced_with_counts(arguments)

    def _traced_with_counts(self, arguments: Arguments) -> Entry:
        for _ in range(_MAX_COUNTS):
            try:
                return Capture(self, arguments, self._optimizers()).entry
            except CountsError as error:
                if self._lost is not None:
                    raise
                self._note_counts(error)
        return Capture(self, arguments, self._optimizers()).entry

    def _note_counts(self, error: CountsError) -> None:
        for held in error.counts:
            self._counts[id(held.where), held.key] = held._replace(value=None)

    def _warn_of_growth(self, what: str) -> None:
        if self._warned_of_growth:
            return
        self._warned_of_growth = True
        warnings.warn(
            f"torch.tpu.compile_step: {_where(self._fn, None)}: the step adds to {what}, which it "
            "does only while it is traced. Return what is to be added, and add it after the call",
            stacklevel=9,
        )

    def _traced_at_once(self, arguments: Arguments) -> Entry | None:
        """The program, traced at the first call; None where that has to run eagerly.

        Then everything is as it was. What is wrong with the step, if something is, shows there.
        """
        if self._tried_at_once:
            return None
        self._tried_at_once = True
        if _step_scaler.existing():
            gc.collect()  # those of steps that are gone
            if _step_scaler.existing():
                return None  # whether its optimizers step at all is not known
        with new_apart():
            optimizers = reachable_optimizers(self._fn)
            moved = list(self._moved)
            for _ in range(_MAX_OPTIMIZERS):
                self._expect_cycles(optimizers)
                try:
                    entry = Capture(self, arguments, optimizers, first=True).entry
                except OtherOptimizersError as error:
                    optimizers = error.optimizers
                except CountsError as counts:
                    self._note_counts(counts)
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
                if self._lost is not None:
                    break
            self._moved = moved
            self._varying.clear()
        self._give_up_what_loses()
        return None

    def _give_up_what_loses(self) -> None:
        if self._lost is not None and self._reason is None:
            self._give_up(
                f"it takes a value from {self._lost}, in a generator; the one that it took while "
                "it was traced is lost, the call goes on with the next one. Pass the batch to the "
                "step as an argument",
                None,
            )

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
                    self._moved.append((weakref.ref(optimizer), state, name))

    def _restore_capturable(self) -> None:
        """A checkpoint with the setting would not go on where there is no such device."""
        for group in self._capturable:
            group["capturable"] = False
        self._capturable.clear()

    def _give_up(self, reason: str, error: BaseException | None) -> None:
        self._reason = reason
        self._entries.clear()
        self._restore_capturable()
        for _, state, name in self._moved:
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
