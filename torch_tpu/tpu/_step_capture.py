"""Tracing a training step into one program."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.tpu import _step_scaler
from torch_tpu.tpu._compiler_options import split
from torch_tpu.tpu._instance_attribute import instance_attribute
from torch_tpu.tpu._live_objects import (
    collect_everything,
    leaves,
    live_objects,
    new_apart,
    new_tensors,
    take_back_appended,
)
from torch_tpu.tpu._microbatches import Microbatches
from torch_tpu.tpu._step_counts import Count
from torch_tpu.tpu._step_entry import PLAIN, RESULT, Arguments, Entry, Later, Place, Update
from torch_tpu.tpu._step_errors import (
    DisturbedError,
    NotCapturableError,
    NotYetError,
    OtherOptimizersError,
)
from torch_tpu.tpu._step_host import changes_of_modules, others_than_counts, updates_of
from torch_tpu.tpu._step_numbers import Numbers, settings
from torch_tpu.tpu._step_randomness import Randomness
from torch_tpu.tpu._step_reach import Held, stepping_in_variables
from torch_tpu.tpu._step_sources import Sources
from torch_tpu.tpu._step_state import counts, make_state
from torch_tpu.tpu._step_surroundings import Surroundings
from torch_tpu.tpu._step_watch import (
    Watch,
    adafactor_step,
    compiling_on_this_thread,
)
from torch_tpu.tpu._warmup import _HostState
from torch_tpu.tpu.compiler import current_compiler_options

if TYPE_CHECKING:
    from torch_tpu.tpu._compiled_step import CompiledStep


# What is set in PyTorch's optimizers, and their groups, for their steps to be traced, and in them.
_OF_PYTORCH = ("_opt_called", "capturable", "_need_device_dtype_check_for_fused")


# As the engine says it; another thread may have done it.
_RANDOM_STATE_SET = "the random state is set in the step"


class Capture:
    """One attempt to trace the step. `entry` is what came of it.

    `first`: the step has not run before. `optimizers` may step in it then, and get their state when
    they do.
    """

    def __init__(
        self,
        step: CompiledStep,
        arguments: Arguments,
        optimizers: list[Optimizer],
        first: bool = False,
    ) -> None:
        self.step = step
        self.arguments = arguments
        self.optimizers = optimizers
        self.first = first
        # Those that have stepped; and all that are to be taken for the next attempt.
        self.used: list[Optimizer] = []
        self.others: list[Optimizer] = []
        self.trace = _C.StepTrace(arguments.tensors)
        self.watch = Watch()
        objects = [o for o in arguments.leaves if not isinstance(o, torch.Tensor)]
        self.sources = Sources([step._fn, *objects], self._refuse_source, Capture._call.__code__)
        self.modules: list[torch.nn.Module] = []
        self.stepped: list[tuple[LRScheduler, Any]] = []
        self.rates: list[tuple[dict[str, Any], torch.Tensor]] = []
        self.numbers = self.watch.numbers = Numbers(self.trace.number_input, self.watch.refuse)
        self.surroundings = Surroundings([step._fn, *objects])
        # What stands for the numbers on the host that the step changes, when it has ended.
        self.counted: list[tuple[Held, Any]] = []
        self.grown: str | None = None  # what it has added to
        self.scalers = [(s, s._per_optimizer_states) for s in _step_scaler.existing()]
        self.value: Any = None
        self.states: dict[tuple[int, Any, str], Any] = {}
        self.randomness = Randomness()
        torch.clear_autocast_cache()
        with new_apart():
            self.host = _HostState()
            self.host.__enter__()
            try:
                self.entry = self._trace()
            except BaseException as error:
                if self.sources.taken is not None:
                    step._lost = self.sources.taken
                mine = self._owns()
                if first or isinstance(error, (NotCapturableError, NotYetError)):
                    _forget_frames(error)
                    self.value, self.stepped, self.watch.refusal = None, [], None
                    self.counted.clear()
                    if isinstance(error, Exception):  # after an interrupt no call follows
                        self.surroundings.put_back()
                    self.host.put_back(mine)
                    self._let_go_of_what_is_kept()
                self.trace.end()
                self.host.put_back(mine)
                self.randomness.put_back()
                raise
            finally:
                self.trace.end()
                torch.clear_autocast_cache()

    def _trace(self) -> Entry:
        trace = self.trace
        if not self.first:
            for optimizer in self.optimizers:
                self.step._make_capturable(optimizer)
        self.states = _states(self.optimizers)
        before = {id(p): (p, p.grad) for p in leaves()}
        failure: Exception | None = None
        if not self.first:
            for optimizer in self.optimizers:
                self._share_counts(optimizer)
        with contextlib.ExitStack() as stack:
            stack.callback(self.step._restore_capturable)
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            # Libraries ask torch.compiler.is_compiling() whether to leave out checks of values.
            stack.enter_context(compiling_on_this_thread())
            if "torch._dynamo" in sys.modules:
                # Compiled functions become a part of this program, operator by operator.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._take_rates(stack)
            self._watch_python(stack)
            self.numbers.double |= any(
                p.dtype == torch.float64
                for optimizer in self.optimizers
                for group in optimizer.param_groups
                for p in group["params"]
            )
            counts = self.step._counts.values()
            for held in counts:
                if type(held.now()) not in (int, float):
                    continue
                stack.callback(held.put, held.now())
                held.put(self.numbers.counted(held.now, held.what))
            try:
                trace.begin()
                with self.watch, self.sources:
                    self.value = self._call()
            except Exception as error:
                failure = error
            finally:
                trace.pause()
                self.counted = [(held, held.now()) for held in counts]
            if self.others:
                raise OtherOptimizersError(self.others)
            if self.watch.refusal is not None:
                raise self.watch.refusal
            if trace.refusal == _RANDOM_STATE_SET and threading.active_count() > 1:
                raise DisturbedError(trace.refusal) from failure
            if trace.refusal:
                raise NotCapturableError(_explained(trace.refusal)) from failure
            if isinstance(failure, (NotCapturableError, NotYetError)):
                raise failure
            if failure is not None:
                if self.watch.in_optimizer:
                    raise NotCapturableError(str(failure)) from failure
                if self.counted and isinstance(failure, TypeError) and "Count" in str(failure):
                    names = ", ".join(held.what for held, _ in self.counted)
                    raise NotCapturableError(
                        f"{names} changes in the step, which needs it as a number: {failure}"
                    ) from failure
                raise failure
            self.randomness.check()
            for group, rate in self.rates:
                if group["lr"] is not rate or rate._version:
                    raise NotCapturableError(
                        "it changes the learning rate itself; use a scheduler of "
                        "torch.optim.lr_scheduler, or change it between the calls"
                    )
        if self.first and len(self.used) < len(self.optimizers):
            raise OtherOptimizersError(self.used)
        self._check_states(self.states)
        self._check_optimizers()
        for scaler, begun in self.scalers:
            _step_scaler.check_finished(scaler)
            if scaler._per_optimizer_states is not begun:
                begun.clear()  # it has the step's tensors, and is held for the case of a failure
        return self._finish(before)

    def _owns(self) -> Callable[[object], bool]:
        """Which objects, and leaves, the step may have changed, and not another thread."""
        if threading.active_count() == 1:
            return lambda owner: True
        modules = _modules_with(self.trace.has_taken_in)
        optimizers = [*self.optimizers, *self.used, *self.others]
        owned = {id(o) for o in (*modules, *optimizers, *_schedulers_of(optimizers))}
        owned.update(id(p) for m in modules for p in m.parameters(recurse=False))
        owned.update(id(p) for o in optimizers for g in o.param_groups for p in g["params"])
        owned.update(id(scaler) for scaler, _ in self.scalers)
        leaf = self.trace.has_taken_in
        return lambda owner: id(owner) in owned or (isinstance(owner, torch.Tensor) and leaf(owner))

    def _kept(self) -> list[torch.Tensor]:
        ours = {id(t) for t in self.numbers.tensors}
        return [t for t in new_tensors() if self.trace.made_here(t) and id(t) not in ours]

    def _let_go_of_what_is_kept(self) -> None:
        """What an attempt that failed has made, and code has kept, is not in its lists any more.

        Elsewhere, in a cache perhaps, where the next call will find it, it gets its values.
        """
        take_back_appended(self._kept())
        kept = self._kept()
        if not kept:
            return
        with contextlib.suppress(RuntimeError):  # those stay without a value
            program = self.trace.finish([], kept, {}, writes=False)
            self.trace.end()
            state = torch.tpu.get_rng_state()  # type: ignore[attr-defined]
            program.run(self.arguments.tensors, [read() for read in self.numbers.reads])
            torch.tpu.set_rng_state(state)  # type: ignore[attr-defined]

    def _begin_state(self, optimizer: Optimizer) -> None:
        """An optimizer steps for the first time: it gets its state, outside of the program."""
        self.trace.pause()
        self.watch.paused = True
        before = _states([optimizer])
        rates = {id(rate): place for place, (_, rate) in enumerate(self.rates)}
        operands = [(g, g["lr"]) for g in optimizer.param_groups if id(g.get("lr")) in rates]
        try:
            self.step._make_capturable(optimizer)
            for group, _ in operands:
                group["lr"] = self.numbers.value(group["lr"])
            make_state(optimizer)
            self.step._make_capturable(optimizer)  # that may be on the CPU
        finally:
            for group, operand in operands:
                group["lr"] = operand
            self.watch.paused = False
            self.trace.begin()
        for key, value in _states([optimizer]).items():
            if before.get(key) is not value:
                self.states[key] = value
        self._share_counts(optimizer)

    def _share_counts(self, optimizer: Optimizer) -> None:
        if self.step._shares_counts:
            for values in counts(optimizer):
                self.trace.share_equal(values)

    def _refuse_source(self, what: str) -> NoReturn:
        self.watch.refuse(
            f"it takes a value from {what}, which would be the same one at every call; pass the "
            "batch to the step as an argument"
        )

    def _call(self) -> Any:
        args, kwargs = self.arguments.restored(self.sources.argument)
        if self.step._accumulate == 1:
            return self.step._fn(*args, **kwargs)
        return Microbatches(self.step._fn, self.step._accumulate, traced=True).run(args, kwargs)

    def _take_rates(self, stack: contextlib.ExitStack) -> None:
        """Learning rates, and settings that change, become operands.

        Each is a tensor of the program while the step is traced.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                double = any(p.dtype == torch.float64 for p in group["params"])
                rate = group.get("lr")
                if rate is not None and not (
                    isinstance(rate, torch.Tensor) and rate.device.type == "tpu"
                ):
                    operand = self.numbers.rate(group, double)
                    self.rates.append((group, operand))
                    stack.callback(group.__setitem__, "lr", rate)
                    group["lr"] = operand
            for group, name, value in settings(optimizer):
                if (id(group), name) in self.step._varying:
                    double = any(p.dtype == torch.float64 for p in group["params"])
                    operands = self.numbers.setting(group, name, double)
                    stack.callback(group.__setitem__, name, value)
                    group[name] = operands
                    if group.get("fused"):  # its operator takes Python's numbers
                        stack.callback(group.__setitem__, "fused", group["fused"])
                        group["fused"] = False
                        stack.enter_context(
                            instance_attribute(optimizer, "_step_supports_amp_scaling", False)
                        )

    def _watch_python(self, stack: contextlib.ExitStack) -> None:
        """Learns which optimizers are used; schedulers' steps are put off."""

        here = threading.get_ident()

        def enter_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if threading.get_ident() != here:
                return
            if not any(optimizer is known for known in self.optimizers):
                if self.first:
                    self.others = [*self.optimizers, optimizer]
                raise NotYetError(f"a {type(optimizer).__name__} steps that did not before")
            if self.stepped:
                raise NotCapturableError("a scheduler is stepped before an optimizer")
            if not any(optimizer is used for used in self.used):
                self.used.append(optimizer)
                if self.first:
                    self._begin_state(optimizer)
            self.watch.in_optimizer += 1

        def leave_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if threading.get_ident() != here:
                return
            self.watch.in_optimizer -= 1
            # PyTorch's note of it for schedulers is taken where they have put it, in `step`.
            optimizer._opt_called = True  # type: ignore[attr-defined]

        for handle in (
            register_optimizer_step_pre_hook(enter_optimizer),
            register_optimizer_step_post_hook(leave_optimizer),
        ):
            stack.callback(handle.remove)
        for scaler, _ in self.scalers:
            stack.enter_context(_step_scaler.decided_in_program(scaler))
        for optimizer in self.optimizers:
            if type(optimizer) is torch.optim.Adafactor:
                hooked: Any = Optimizer.profile_hook_step(adafactor_step)
                method = types.MethodType(hooked, optimizer)
                stack.enter_context(instance_attribute(optimizer, "step", method))
        for scheduler in _schedulers_of(self.optimizers):

            def put_off(*args: Any, _scheduler: LRScheduler = scheduler, **kwargs: Any) -> None:
                self.stepped.append((_scheduler, (args, kwargs)))

            stack.enter_context(instance_attribute(scheduler, "step", put_off))
            stack.enter_context(instance_attribute(scheduler, "get_last_lr", _no_last_rate))

    # --- What came of it --------------------------------------------------------------------------

    def _check_states(self, before: dict[tuple[int, Any, str], Any]) -> None:
        for key, value in _states(self.optimizers).items():
            if key not in before:
                raise NotYetError("an optimizer makes new state at every call")
            if value is before[key]:
                continue
            if isinstance(value, torch.Tensor) and isinstance(before[key], torch.Tensor):
                self._carry(before[key], value, "the state of an optimizer")
            else:
                raise NotCapturableError(
                    f"an optimizer keeps {key[2]!r} in its state as a Python object, and changes it"
                )

    def _check_optimizers(self) -> None:
        """Numbers that an optimizer counts itself, in a group or an attribute, would stay."""
        for optimizer in self.optimizers:
            for container in (vars(optimizer), *optimizer.param_groups):
                copy = self.host.before(container)
                for name, now in container.items():
                    if name in _OF_PYTORCH or not _is_plain(now):
                        continue
                    old = copy.get(name)
                    if now is old or (type(now) is type(old) and now == old):
                        continue
                    if self.first and name not in copy:
                        raise NotYetError(f"an optimizer begins to keep {name!r}")
                    raise NotCapturableError(
                        f"{name!r} of {type(optimizer).__name__} changes in the step, "
                        f"from {old!r} to {now!r}"
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

    def _finish(self, before: dict[int, tuple[torch.Tensor, torch.Tensor | None]]) -> Entry:
        trace, step, entry = self.trace, self.step, Entry()
        self.modules = _modules_with(trace.has_taken_in)
        entry.once, entry.again = None, False
        entry.updates, self.grown = self._check_host(entry)
        kept = self._check_modules()
        returned, entry.spec = pytree.tree_flatten(self.value)
        entry.leaves = [self._leaf(leaf) for leaf in returned]
        results = [
            self._result(leaf)
            for leaf, kind in zip(returned, entry.leaves, strict=True)
            if kind is RESULT
        ]
        entry.num_results = len(results)
        stepped = [scheduler for scheduler, _ in self.stepped]
        entry.after = [
            (
                weakref.ref(scheduler),
                pytree.tree_map(lambda value: self._place(value, results, entry), arguments),
            )
            for scheduler, arguments in self.stepped
        ]
        del returned, self.value, self.stepped
        entry.gradients = []
        outlives = step._outliving_gradients(self.used)
        owns = self._owns()
        for p in leaves():
            _, old = before.get(id(p), (p, None))
            if p.grad is old or not owns(p):
                continue
            if p.device.type != "tpu":
                raise NotCapturableError("it computes gradients on the CPU")
            if p.grad is not None and outlives(p):
                if self.first:
                    raise NotYetError("the next calls begin with gradients")
                if any(p is t for t in self.arguments.tensors):
                    raise NotCapturableError(
                        "it leaves a gradient in an argument, which is another tensor at the next "
                        "call; use torch.autograd.grad, and return it"
                    )
                gradient = p.grad.detach()
                if old is not None and trace.has_taken_in(old):
                    # The next call begins with it: it is to be another tensor than this call's.
                    results.append(gradient)
                    entry.gradients.append((p, Place(len(results) - entry.num_results - 1)))
                else:
                    kept.append(gradient)
                    entry.gradients.append((p, gradient))
            else:
                entry.gradients.append((p, None))
            p.grad = None
        self._check_survivors([*results, *kept, *self.numbers.tensors])
        entry.key = self.arguments.key
        entry.forms = self.arguments.forms()
        entry.objects = [o for o in self.arguments.leaves if not isinstance(o, torch.Tensor)]
        entry.optimizers = [
            (weakref.ref(o), o.state, o.param_groups, len(o.param_groups)) for o in self.optimizers
        ]
        entry.reads = list(self.numbers.reads)
        entry.conditions = list(self.numbers.conditions)
        begun = self._gradients_to_begin_with(before)
        entry.gradients_of_before = [] if step._gradients_move else begun
        moving = begun if step._gradients_move else []
        entry.guards = self._guards(before, {id(p) for p, _ in entry.gradients})
        entry.holders = [
            (held._replace(value=None), weakref.ref(held.value))
            for held in stepping_in_variables(step._fn)
            if any(held.value is used for used in (*self.used, *stepped))
        ]
        _, flags = split(current_compiler_options(), "torch.tpu.compile_step")
        entry.program = trace.finish(results, kept, {**flags, **step._flags}, gradients=moving)
        trace.end()
        for p, gradient in moving:
            p.grad = gradient  # the program is about to look for it
        try:
            entry.program.wait()
        except RuntimeError as error:
            raise NotCapturableError(f"the compiler refuses the program: {error}") from error
        if self.grown is not None:
            step._warn_of_growth(self.grown)
        return entry

    def _gradients_to_begin_with(
        self, before: dict[int, tuple[torch.Tensor, torch.Tensor | None]]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Those of earlier calls, or of eager code, that the step uses, with their leaves."""
        arguments = {id(t) for t in self.arguments.tensors}
        return [
            (p, gradient)
            for p, gradient in before.values()
            if gradient is not None and id(p) not in arguments and self.trace.has_taken_in(gradient)
        ]

    def _leaf(self, value: Any) -> Any:
        read = self.numbers.exact_read_of(value)
        if read is not None:
            return Later(read)
        return RESULT if isinstance(value, torch.Tensor) else value

    def _check_host(self, entry: Entry) -> tuple[list[Update], str | None]:
        """What the step has changed beside tensors, modules and optimizers.

        Returns the numbers it has changed, with what gives the new ones, and what it has added to.
        """
        taken = self.surroundings.taken_from()
        if taken is not None:
            entry.once = (
                f"it takes values out of {taken}, which would be the same ones at every call; pass "
                "the batch to the step as an argument"
            )
        if self.sources.taken is not None:
            entry.once = (
                f"it takes a value from {self.sources.taken}, in a generator, which would be the "
                "same one at every call; pass the batch to the step as an argument"
            )
        updates = updates_of(self.counted, self.numbers, self.first)
        if entry.once:
            return updates, None  # the next call will do the rest itself
        changes = [*self.surroundings.changes(), *changes_of_modules(self.modules, self.host)]
        grown = self.surroundings.grown()
        if others_than_counts(changes, self.first) or (self.first and grown is not None):
            entry.again = True  # it may be that only first calls do so
        return updates, None if self.first else grown

    def _result(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "tpu":
            raise NotCapturableError("it returns a tensor on the CPU, which would be a constant")
        return t.detach() if self.trace.made_here(t) else t

    def _place(self, value: Any, results: list[torch.Tensor], entry: Entry) -> Any:
        if type(value) is Count:
            raise NotCapturableError(f"{value.what} changes in the step, which a scheduler gets")
        if not isinstance(value, torch.Tensor):
            return value
        results.append(self._result(value))
        return Place(len(results) - entry.num_results - 1)

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
                copy = self.host.before(container)
                for key, now in list(container.items()):
                    old = copy.get(key)
                    what = f"{key!r} of {type(module).__name__}"
                    if now is old:
                        continue
                    if not isinstance(now, torch.Tensor):
                        if key in copy and isinstance(now, PLAIN) and now != old:
                            raise NotCapturableError(
                                f"{what} changes in the step, from {old!r} to {now!r}"
                            )
                    elif isinstance(old, torch.Tensor):
                        self._carry(old, now, what)
                        container[key] = old
                    elif self.trace.made_here(now):
                        if self.first:
                            raise NotYetError(f"{what} becomes a tensor")
                        container[key] = now.detach()
                        kept.append(container[key])
        return kept

    def _check_survivors(self, known: list[torch.Tensor]) -> None:
        ours = {id(t) for t in known}

        def kept() -> list[tuple[int, ...]]:
            with torch._C.DisableTorchFunctionSubclass():
                return [
                    tuple(t.shape)
                    for t in new_tensors()
                    if self.trace.made_here(t) and id(t) not in ours
                ]

        held = kept()
        if held:
            collect_everything()
            held = kept()
        if held:
            raise NotCapturableError(
                f"tensors that it makes are kept outside (sizes {held[:4]}), in a list or a "
                "variable that outlives it; return them instead"
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
                if (id(vars(module)), name) in self.step._counts:
                    continue
                if isinstance(value, PLAIN):
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
        for scaler, _ in self.scalers:
            if scaler._scale is None or not self.trace.has_taken_in(scaler._scale):
                continue
            guards.add(vars(scaler), "_scale", scaler._scale, False)
            guards.add(vars(scaler), "_growth_tracker", scaler._growth_tracker, False)
            for name in _step_scaler.SETTINGS:
                guards.add(vars(scaler), name, vars(scaler)[name], True)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for name, value in group.items():
                    if name == "params" or isinstance(value, torch.Tensor):
                        guards.add(group, name, value, False)
                    elif name not in ("lr", "initial_lr", "max_lr", "min_lr") and (
                        (id(group), name) not in self.numbers.keys
                    ):
                        guards.add(group, name, value, True)
                for p in group["params"]:
                    tensors[id(p)] = p
            guards.add_state(optimizer.state)
            for state in optimizer.state.values():
                for name, value in state.items() if isinstance(state, dict) else ():
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
            elif self.trace.has_taken_in(gradient) and not self.step._gradients_move:
                # The one the step begins with: it may have cleared it.
                now, tensor.grad = tensor.grad, gradient
                guards.add_tensor(tensor, "same")
                tensor.grad = now
            else:
                guards.add_tensor(tensor, "any")
        return guards


def _forget_frames(error: BaseException | None) -> None:
    """Lets go of what the functions that have ended by an exception had."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _modules_with(used: Callable[[torch.Tensor], bool]) -> list[torch.nn.Module]:
    """The modules that have a used parameter or buffer, or a module below that has, or one above.

    Of all that exist: however the step comes by them.
    """
    existing = [
        o for o in live_objects(torch.nn.Module) if isinstance(vars(o).get("_buffers"), dict)
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


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


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
        for o in live_objects(LRScheduler)
        if any(getattr(o, "optimizer", None) is optimizer for optimizer in optimizers)
    ]
