"""Runs an operator's sample on the CPU and on the device; what the operator suites share."""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from torch_tpu.testing import exceptions
from torch_tpu.testing.cases import DTYPES, Case, Failure, Options, Result, spread
from torch_tpu.testing.comparison import as_accurate, compare, stride_difference
from torch_tpu.testing.placement import described, over_tensors, placed, tensors_in
from torch_tpu.testing.tolerance import Tolerance, tolerance_of

_PRECISE = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass
class Arguments:
    """What an operator is called with."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, sample: Any) -> Arguments:
        """The arguments of a SampleInput, which are on the CPU."""
        return cls(sample.input, tuple(sample.args), dict(sample.kwargs))

    def on(self, device: str, requires_grad: bool = False) -> Arguments:
        """A copy on a device; those that required gradients are leaves if asked for."""
        return Arguments(*placed((self.input, self.args, self.kwargs), device, requires_grad))

    def with_device(self) -> Arguments:
        """The arguments, with a device where neither a tensor nor an argument names one."""
        if tensors_in((self.input, self.args, self.kwargs)) or "device" in self.kwargs:
            return self
        return Arguments(self.input, self.args, {**self.kwargs, "device": "cpu"})

    def summed_in_float32(self) -> Arguments:
        """The arguments, with an option to do so where the choice is left open for halves."""
        options = self.kwargs.get("options")
        halves = (torch.bfloat16, torch.float16)
        if options is None or options.acc_dtype is not None or self.input.dtype not in halves:
            return self
        policy = "accurate" if options.acc_policy == "auto" else options.acc_policy
        chosen = dataclasses.replace(options, acc_dtype=torch.float32, acc_policy=policy)
        return Arguments(self.input, self.args, {**self.kwargs, "options": chosen})

    def map(self, function: Callable[[torch.Tensor], Any]) -> Arguments:
        """The arguments with `function` applied to each tensor."""
        return Arguments(*over_tensors((self.input, self.args, self.kwargs), function))

    def more_precise(self) -> Arguments | None:
        """The arguments in the next wider dtype, on the CPU; None if there is none for them.

        Integers like the input's become float64, for results that are floating point.
        """
        wider = False
        precise = dict(_PRECISE)
        if isinstance(self.input, torch.Tensor) and self.input.dtype in _INTEGERS:
            precise[self.input.dtype] = torch.float64

        def widen(value: Any) -> Any:
            nonlocal wider
            dtype = value.dtype if isinstance(value, torch.Tensor) else value
            if dtype not in precise:
                return value
            wider = True
            dtype = precise[dtype]
            if isinstance(value, torch.Tensor):
                return value.detach().to(dtype).requires_grad_(value.requires_grad)
            return dtype

        arguments = self.map(widen)
        if isinstance(self.input, torch.nn.Module):
            dtypes = {p.dtype for p in self.input.parameters() if p.dtype in _PRECISE}
            arguments.input = copy.deepcopy(self.input)
            if len(dtypes) == 1:
                arguments.input.to(widen(dtypes.pop()))
        arguments.kwargs = {
            key: widen(value) if isinstance(value, torch.dtype) else value
            for key, value in arguments.kwargs.items()
        }
        return arguments if wider else None

    def call(self, function: Callable[..., Any]) -> Any:
        """The result of calling `function` with the arguments."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(self.input, *self.args, **self.kwargs)

    def __str__(self) -> str:
        parts = [described(self.input), *(described(a) for a in self.args)]
        return ", ".join(parts + [f"{k}={described(v)}" for k, v in self.kwargs.items()])


def outcome(function: Callable[[], Any]) -> Any:
    """The result, or the exception that came instead."""
    try:
        return function()
    except Exception as error:
        return error


def error_text(error: BaseException) -> str:
    """Type and message of an exception, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"


def same_message(actual: BaseException, expected: BaseException) -> bool:
    """Whether messages agree, apart from the device they name."""

    def plain(error: BaseException) -> str:
        text = str(error).split("\nException raised from")[0].strip()
        return re.sub(r"\b(tpu|cpu|privateuseone|privateuse1)(:\d+)?\b", "DEVICE", text.lower())

    return plain(actual) == plain(expected)


def elements_chosen(arguments: Arguments, result: Any, place_of_dim: int) -> Any:
    """A result of sorting with its indices replaced by the elements they name."""
    source = arguments.input
    if arguments.kwargs.get("stable") or not isinstance(source, torch.Tensor) or source.ndim == 0:
        return result
    args = arguments.args[place_of_dim : place_of_dim + 1]
    dim = arguments.kwargs.get("dim", args[0] if args else -1)

    def element(index: torch.Tensor) -> torch.Tensor:
        reduced = index.ndim < source.ndim
        picked = source.detach().gather(dim, index.unsqueeze(dim) if reduced else index)
        return picked.squeeze(dim) if reduced else picked

    if isinstance(result, torch.Tensor):
        return element(result)
    return [result[0], element(result[1])]


class Checker:
    """Collects what the samples of a case came to."""

    def __init__(self, case: Case, info: Any, options: Options) -> None:
        self.case, self.info, self.options = case, info, options
        self.dtype = DTYPES[case.dtype]
        self.result = Result(case, "pass")

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance for results of a dtype."""
        result = tolerance_of(self.info, self.case, dtype)
        if self.case.variant == "out" and (dtype.is_floating_point or dtype.is_complex):
            # A wider `out` does not make the computation more precise.
            inexact = self.dtype.is_floating_point or self.dtype.is_complex
            computed = tolerance_of(
                self.info, self.case, self.dtype if inexact else torch.get_default_dtype()
            )
            result = result.looser(computed.rtol, computed.atol)
        return result

    def samples(self, requires_grad: bool = False) -> list[Any]:
        """The samples to run, on the CPU."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            items = list(self.info.sample_inputs("cpu", self.dtype, requires_grad=requires_grad))
        return self.some_of(items)

    def some_of(self, items: list[Any]) -> list[Any]:
        """As many of the items as the options allow."""
        chosen = spread(items, self.options.samples)
        self.result.left_out = len(items) - len(chosen)
        return chosen

    def note(self, name: str) -> None:
        """Counts something that is no failure."""
        self.result.notes[name] = self.result.notes.get(name, 0) + 1

    def fail(self, failure: Failure, sample: Any) -> None:
        """Counts a failed sample."""
        self.result.failed += 1
        if len(self.result.failures) < self.options.failures_kept:
            failure.sample = str(sample)[:600]
            failure.text = failure.text[:600]
            self.result.failures.append(failure)

    def skip(self, reason: str) -> Result:
        """The case does not apply."""
        self.result.status, self.result.reason = "not applicable", reason
        return self.result

    def finish(self) -> Result:
        """The case's result."""
        if self.result.failed:
            self.result.status = "fail"
        elif not self.result.samples:
            return self.skip("no sample runs on the CPU")
        return self.result

    def _repeats(
        self,
        arguments: Arguments,
        run: Callable[[Arguments], Any],
        requires_grad: bool,
        expected: Any,
    ) -> bool:
        """Whether the CPU gives the same result again, whatever the seed."""
        set_seed = torch.manual_seed
        for seed in range(1, 10):
            # Some entries of the database set the seed themselves.
            with mock.patch("torch.manual_seed", lambda _, seed=seed: set_seed(seed)):
                torch.manual_seed(seed)
                again = run(arguments.on("cpu", requires_grad))
            if compare(again, expected, self.tolerance, device="cpu") is not None:
                return False
        return True

    def check(
        self,
        arguments: Arguments,
        run: Callable[[Arguments], Any],
        process: Callable[[Any], Any] = lambda x: x,
        *,
        requires_grad: bool = False,
        errors_count: bool = False,
        error_pattern: str | None = None,
    ) -> None:
        """Compares one call on both devices.

        Where the CPU raises, the device has to raise the same type, if `errors_count`; otherwise
        the sample is not one for the CPU and is left out. With `error_pattern`, the message has to
        be the CPU's, or match the pattern.
        """
        if getattr(self.info, "is_factory_function", False):
            arguments = arguments.with_device()
        if self.case.op in exceptions.SUMMED_IN_FLOAT32:
            arguments = arguments.summed_in_float32()
        on_cpu = arguments.on("cpu", requires_grad)
        on_device = arguments.on(self.options.device, requires_grad)
        if self.case.op in exceptions.HOST_ARGUMENTS:
            on_device.args = on_cpu.args
        torch.manual_seed(0)
        expected = outcome(lambda: run(on_cpu))
        if isinstance(expected, Exception):
            if not errors_count:
                self.note("cpu raises")
                return
            if exceptions.goes_unchecked(self.case.op, expected):
                self.note("not checked on the device")
                return
            self.result.samples += 1
            torch.manual_seed(0)
            self._check_error(outcome(lambda: run(on_device)), expected, error_pattern, arguments)
            return
        if error_pattern is not None:
            self.note("cpu does not raise")
            return
        self.result.samples += 1
        values = True
        if self.case.op in exceptions.RANDOM:
            values = self.case.op not in exceptions.UNINITIALISED and self._repeats(
                arguments, run, requires_grad, expected
            )
            if not values:
                self.note("random")
        torch.manual_seed(0)
        actual = outcome(lambda: run(on_device))
        if isinstance(actual, Exception):
            self.fail(Failure("error", error_text(actual)), arguments)
            return
        try:
            strides_differ = stride_difference(actual, expected)
            actual, expected = process(actual), process(expected)
            if self._leaves_out_statistics(expected):
                actual, expected = actual[0], expected[0]
            # Gradients and the like have no indices.
            chooses = exceptions.CHOOSES.get(self.case.op)
            if chooses is not None and self.case.suite in ("forward", "variants"):
                actual = elements_chosen(on_device, actual, chooses[0])
                expected = elements_chosen(on_cpu, expected, chooses[0])
            found = compare(
                actual,
                expected,
                self.tolerance,
                device=self.options.device,
                values=values,
                dtypes=self.case.op not in exceptions.STATISTICS,
            )
        except Exception as error:
            self.fail(Failure("error", f"reading the result: {error_text(error)}"), arguments)
            return
        if found is not None and found.kind == "value":
            precise = arguments.more_precise()
            if precise is not None and values:
                reference = outcome(lambda: process(run(precise.on("cpu", requires_grad))))
                if self._leaves_out_statistics(reference):
                    reference = reference[0]
                if not isinstance(reference, Exception) and as_accurate(
                    actual, expected, reference, self.tolerance
                ):
                    self.note("more accurate than the cpu")
                    found = None
        if found is not None:
            self.fail(found, arguments)
        elif strides_differ:
            self.note("other strides")

    def _leaves_out_statistics(self, result: Any) -> bool:
        """Whether these are the results of a normalization that does not train, on the CPU."""
        return (
            self.case.op in exceptions.STATISTICS
            and isinstance(result, (list, tuple))
            and len(result) > 1
            and isinstance(result[1], torch.Tensor)
            and result[1].numel() == 0
            and result[0].numel() > 0
        )

    def _check_error(
        self, actual: Any, expected: Exception, pattern: str | None, arguments: Arguments
    ) -> None:
        if not isinstance(actual, Exception):
            self.fail(Failure("no error", f"expected {error_text(expected)}"), arguments)
            return
        text = f"{error_text(actual)}; expected {error_text(expected)}"
        if type(actual) is not type(expected):
            self.fail(Failure("error type", text), arguments)
        elif not same_message(actual, expected):
            accepted = pattern is None or re.search(pattern, str(actual)) is not None
            if not accepted and not exceptions.says_it_otherwise(self.case.op, actual):
                self.fail(Failure("message", text), arguments)
            else:
                self.note("other message")
