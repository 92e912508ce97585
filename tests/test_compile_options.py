"""XLA's flags for the programs of torch.compile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import subprocess_python
import torch

from torch_tpu import aot, tpu

# Flags are a compiler's own; these are the CPU plugin's.
needs_cpu = pytest.mark.skipif(
    tpu.get_platform_name() != "cpu", reason="the flags are those of the CPU's compiler"
)


@pytest.fixture(autouse=True)
def new_graphs() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@needs_cpu
@pytest.mark.single_operators
def test_flags_are_a_part_of_what_a_program_is(tmp_path: Path) -> None:
    code = """
        import torch

        def function(x):
            return x.sin() / 3 + x

        x = torch.rand(5, device="tpu")
        eager = function(x).cpu()
        flags = {"xla_cpu_enable_fast_math": True}

        def compile(**how):
            torch._dynamo.reset()
            before = torch.tpu.dispatch_stats()
            y = torch.compile(function, **how)(x).cpu()
            after = torch.tpu.dispatch_stats()
            torch.testing.assert_close(y, eager)
            return after["compiles"] - before["compiles"], after["loads"] - before["loads"]

        out = [compile(backend="tpu"), compile(options={}), compile(options=dict(flags))]
        with torch.tpu.compiler.custom_compiler_options(flags):
            out += [compile(), compile(options={"xla_cpu_enable_fast_math": False})]
        out += [compile(), torch.tpu.compiler.current_compiler_options()]
        print(out)
    """

    def run() -> str:
        return subprocess_python.run(
            code,
            TORCH_TPU_TIER2_COMPILATION_CACHE="disabled",
            TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=str(tmp_path),
        )

    new, known = "(1, 0)", "(0, 1)"
    expected = ", ".join([new, known, new, known, new, known, "{}"])
    assert run() == f"[{expected}]\n"
    # Another process compiles nothing.
    expected = expected.replace(new, known)
    assert run() == f"[{expected}]\n"


@needs_cpu
@pytest.mark.parametrize("mode", list(tpu.EagerMode))
def test_every_mode_and_the_backward_pass(mode: tpu.EagerMode) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * x).sum()

    expected = torch.rand(7, requires_grad=True)
    x = expected.detach().to("tpu").requires_grad_()
    with tpu.set_eager_mode(mode):
        compiled = torch.compile(
            function, backend="tpu", options={"xla_cpu_enable_fast_math": True}
        )
        compiled(x * 1).backward()
        assert x.grad is not None
        function(expected).backward()
        torch.testing.assert_close(x.grad.cpu() + 0, expected.grad)


@needs_cpu
def test_flags_the_compiler_refuses() -> None:
    x = torch.rand(5, device="tpu")
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"xla_no_such_flag": 1},
            r"\[compile options\] the compiler of cpu refuses .*xla_no_such_flag",
        ),
        (
            {"xla_cpu_enable_fast_math": "perhaps"},
            "xla_cpu_enable_fast_math = perhaps.*not a valid",
        ),
        ({"xla_cpu_enable_fast_math": [1]}, r"expected a bool, int, float or str .* got \[1\]"),
    ]
    for value, message in cases:
        with pytest.raises(Exception, match=message):
            torch.compile(torch.sin, backend="tpu", options=value)(x)
        torch._dynamo.reset()
        with (
            pytest.raises((RuntimeError, TypeError), match=message),
            tpu.compiler.custom_compiler_options(value),
        ):
            pass


@needs_cpu
def test_a_mistyped_flag_gets_the_nearest() -> None:
    """Of those that the compiler knows; and the message says where options are described."""
    x = torch.rand(5, device="tpu")
    mistyped: dict[str, Any] = {"xla_cpu_enable_fast_mat": True}

    def compiled() -> None:
        torch.compile(torch.sin, backend="tpu", options=mistyped)(x)

    def one_step() -> None:
        step = tpu.compile_step(lambda x: x + 1, options=mistyped)
        for _ in range(2):  # the first call may run eagerly
            step(x)

    def no_device() -> None:
        aot.compile(torch.nn.Linear(2, 2), "device", args=(torch.ones(1, 2),), flags=mistyped)

    for call in (compiled, lambda: in_scope(mistyped), one_step, no_device):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        message = str(caught.value)
        assert "'xla_cpu_enable_fast_mat'; did you mean xla_cpu_enable_fast_math?" in message
        assert call is no_device or "docs/compile.md" in message
    # A value that is refused, and a name that none is like, get no suggestion.
    wrong: list[dict[str, Any]] = [{"xla_cpu_enable_fast_math": "perhaps"}, {"xla_no_such_flag": 1}]
    for options in wrong:
        with pytest.raises(RuntimeError, match=r"docs/compile\.md") as caught:
            in_scope(options)
        assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("backend", [None, "tpu"])
def test_modes_are_those_of_inductor(backend: str | None) -> None:
    how: dict[str, Any] = {} if backend is None else {"backend": backend}
    x = torch.rand(5)
    known = list(torch._inductor.list_mode_options())
    for mode in known:
        torch._dynamo.reset()
        y = torch.compile(torch.sin, mode=mode, **how)(x.to("tpu"))
        torch.testing.assert_close(y.cpu(), x.sin())
    with pytest.raises(RuntimeError) as inductors:
        torch.compile(torch.sin, mode="max-autotun", backend="inductor")
    wrong: list[tuple[Any, str]] = [("max-autotun", "; did you mean 'max-autotune'?")]
    for mode, guess in [*wrong, ("x", ""), (["x"], "")]:
        torch._dynamo.reset()
        message = str(inductors.value).replace("max-autotun,", f"{mode},")
        assert f"Unrecognized mode={mode}, should be one of: {', '.join(known)}" == message
        with pytest.raises(RuntimeError, match=re.escape(f"torch.compile: {message}{guess}")):
            torch.compile(torch.sin, mode=mode, **how)(x.to("tpu"))


# --- The table of options -------------------------------------------------------------------------


def compiled_with(options: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda x: x + 1, backend="tpu", options=options)(
        torch.ones(3, device="tpu")
    )


def in_scope(options: dict[str, Any]) -> None:
    with tpu.compiler.custom_compiler_options(options):
        pass


def for_a_step(options: dict[str, Any]) -> None:
    tpu.compile_step(lambda: None, options=options)


def ahead_of_time(options: dict[str, Any]) -> None:
    aot.compile(torch.nn.Linear(2, 2), "device", args=(torch.ones(1, 2),), flags=options)


@pytest.mark.parametrize("entry", [compiled_with, in_scope, for_a_step, ahead_of_time])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dynamic_bucket": False},
            "there is no option 'dynamic_bucket'; did you mean 'dynamic_bu",
        ),
        ({"max_autotune": True}, "there is no option 'max_autotune'; the options are"),
        ({3: 1}, "there is no option 3"),
        ({"dynamic_buckets": "many"}, "dynamic_buckets: expected a list of positive sizes"),
        ({"dynamic_buckets": [0]}, "dynamic_buckets: expected a list of positive sizes"),
        ({"fuse_attention": 1}, "fuse_attention: expected True or False, got 1"),
    ],
)
def test_options_that_are_none(entry: Any, options: dict[Any, Any], message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        entry(options)


@pytest.mark.parametrize("entry", [for_a_step, ahead_of_time])
@pytest.mark.parametrize("name", tpu.compiler.OPTIONS)
def test_options_that_mean_nothing_there(entry: Any, name: str) -> None:
    value = True
    with pytest.raises(ValueError, match=f"'{name}' is an option of torch.compile"):
        entry({name: value})


def test_our_options_in_a_scope() -> None:
    with tpu.compiler.custom_compiler_options({"dynamic_buckets": [64]}):
        x = torch.ones(5, 3, device="tpu")
        torch._dynamo.mark_dynamic(x, 0)
        with tpu.explain() as explanation:
            torch.testing.assert_close(
                torch.compile(lambda x: x * 2, backend="tpu")(x).cpu(), x.cpu() * 2
            )
    assert any("64x3" in program.stablehlo for program in explanation.programs)


def test_the_docs_list_every_option() -> None:
    text = (Path(__file__).parents[1] / "docs" / "compile.md").read_text()
    for option in tpu.compiler.OPTIONS.values():
        assert f"`{option.name}`" in text
        assert option.doc
