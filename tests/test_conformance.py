"""A slice of the conformance run, and the harness itself.

The whole run is `python -m torch_tpu.testing run`; this takes a sample or two of the operators
that programs use most.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from torch_tpu.testing import __main__ as command
from torch_tpu.testing import (
    comparison,
    databases,
    exceptions,
    placement,
    results,
    suites,
    tolerance,
)
from torch_tpu.testing.cases import Case, Failure, Options, Result, Status, spread
from torch_tpu.testing.operator_calls import Arguments, Checker
from torch_tpu.testing.report import summary
from torch_tpu.testing.runner import Worker

OPERATORS = re.findall(
    r"\S+",
    """
add sub mul div.no_rounding_mode pow maximum minimum clamp where eq lt logical_and bitwise_and
exp log sqrt rsqrt sin cos tanh sigmoid abs neg sign floor round reciprocal erf
sum mean amax argmax prod var std any all cumsum logsumexp norm sort topk max.reduction_with_dim
matmul bmm mm addmm einsum outer linalg.vector_norm linalg.inv tril triu
cat stack split chunk reshape transpose permute expand repeat roll flip squeeze unsqueeze narrow
gather scatter scatter_add index_select index_put masked_fill masked_select nonzero take_along_dim
arange linspace full zeros_like to.dtype clone
nn.functional.relu nn.functional.gelu nn.functional.silu nn.functional.softplus softmax
log_softmax nn.functional.linear nn.functional.embedding nn.functional.layer_norm
nn.functional.rms_norm nn.functional.batch_norm nn.functional.group_norm nn.functional.conv1d
nn.functional.conv2d nn.functional.conv_transpose2d nn.functional.max_pool2d
nn.functional.avg_pool2d nn.functional.interpolate.bilinear nn.functional.pad.constant
nn.functional.cross_entropy nn.functional.mse_loss nn.functional.nll_loss
nn.functional.scaled_dot_product_attention nn.functional.dropout nn.functional.one_hot
""",
)
MODULES = ["nn.Linear", "nn.LSTM", "nn.MultiheadAttention", "nn.BatchNorm2d", "nn.Embedding"]
LISTS = ["_foreach_add", "_foreach_mul", "_foreach_addcdiv", "_foreach_sqrt", "_foreach_norm"]
OPTIMIZERS = ["SGD", "AdamW"]


def slice_of_the_run() -> list[Case]:
    """The cases of the operators above that have the dtype, in the order of the databases."""
    names = {
        "foreach": {*LISTS},
        "forward": {*OPERATORS},
        "gradients": {*OPERATORS},
        "variants": {*OPERATORS},
        "errors": {*OPERATORS},
        "modules": {*MODULES},
        "optimizers": {*OPTIMIZERS},
    }
    keep = {
        "forward": {"float32", "bfloat16", "int64"},
        "gradients": {"backward"},
        "variants": {"out", "inplace"},
        "modules": {"train"},
        "optimizers": {"foreach", "fused"},
    }
    return [
        case
        for suite, (cases, _) in suites.SUITES.items()
        for case in cases()
        if case.op in names.get(suite, ())
        and (suite not in keep or {case.variant, case.dtype} & keep[suite])
        and (suite in ("forward", "errors") or case.dtype == "float32")
    ]


@pytest.mark.parametrize("case", slice_of_the_run(), ids=lambda case: case.key)
def test_does_what_the_cpu_does(case: Case) -> None:
    run = suites.SUITES[case.suite][1]
    result = run(case, Options(samples=2 if case.suite in ("forward", "errors") else 1))
    assert result.status in ("pass", "not applicable"), result.failures


def test_slice_names_entries_of_the_databases() -> None:
    assert set(OPERATORS) - {"to.dtype"} <= databases.operators().keys()
    assert set(MODULES) <= databases.modules().keys()
    assert set(LISTS) <= databases.foreach_operators().keys()
    assert set(OPTIMIZERS) <= databases.optimizers().keys()


# --- The harness ---------------------------------------------------------------------------------


def checker() -> Checker:
    return Checker(
        Case("forward", "add", "function", "float32"), databases.operators()["add"], Options()
    )


def status_of(on_device: float) -> tuple[Status, list[str]]:
    """What the harness makes of a function that adds `on_device` there and one on the CPU."""
    c = checker()
    arguments = Arguments(torch.arange(4.0), (), {})
    c.check(arguments, lambda a: a.input + (1.0 if a.input.device.type == "cpu" else on_device))
    result = c.finish()
    return result.status, [failure.kind for failure in result.failures]


def test_right_and_wrong_values() -> None:
    assert status_of(1.0) == ("pass", [])
    assert status_of(1.001) == ("fail", ["value"])


def test_wrong_dtype_and_shape() -> None:
    tpu = torch.ones(2, device="tpu")
    for expected in (torch.ones(2, dtype=torch.float64), torch.ones(2, 1)):
        found = comparison.compare(tpu, expected, tolerance.defaults, device="tpu")
        assert found is not None and found.kind == "metadata"


def test_exclusions_of_one_variant() -> None:
    def excluded(variant: str) -> bool:
        reason = exceptions.reason_excluded("variants", "_chunk_cat", variant, "float32")
        return reason is not None

    assert excluded("0-d")
    assert not excluded("out")
    assert exceptions.reason_excluded("forward", "chalf", "function", "float32") is not None


def test_error_types_and_messages() -> None:
    def on(first: type[Exception], text: str, pattern: str | None) -> list[str]:
        def run(a: Arguments) -> None:
            if a.input.device.type == "cpu":
                raise ValueError("expected a square matrix on cpu")
            raise first(text)

        c = checker()
        c.check(Arguments(torch.ones(1), (), {}), run, errors_count=True, error_pattern=pattern)
        return [failure.kind for failure in c.finish().failures]

    assert on(ValueError, "expected a square matrix on tpu:0", "") == []
    assert on(ValueError, "another", "square") == ["message"]
    assert on(ValueError, "no square", "square") == []
    assert on(IndexError, "expected a square matrix on cpu", "") == ["error type"]


def test_placement_keeps_views() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for tensor in (base, base.T, base[1:, ::2], base[:1].expand(4, 6), base[2:2], base[1, 3]):
        copy = placement.copy_to(tensor, "tpu")
        assert copy.stride() == tensor.stride()
        assert copy.storage_offset() == (tensor.storage_offset() if tensor.numel() else 0)
        assert torch.equal(copy.cpu(), tensor)
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    copy = placement.copy_to(conjugate, "tpu")
    assert copy.is_conj() and torch.equal(copy.cpu().resolve_conj(), conjugate.resolve_conj())


def test_spread_keeps_both_ends() -> None:
    assert spread(list(range(10)), 3) == [0, 4, 9]
    assert spread(list(range(10)), 1) == [0]
    assert spread([1, 2], 0) == [1, 2]


def test_results_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    case = Case("forward", "add", "function", "float32")
    first = Result(case, "fail", samples=2, failed=1, failures=[Failure("value", "off", "x")])
    second = Result(case, "pass", samples=2, fallbacks={"aten::add": 1})
    results.append(path, first)
    assert results.read([path]) == {case.key: first}
    results.append(path, second)
    with path.open("a") as file:
        file.write('{"suite": "forw')  # a run that was killed
    assert results.read([path]) == {case.key: second}
    assert "forward" in summary([second])


def test_worker_that_is_lost_is_replaced() -> None:
    """A case whose worker ends or hangs says so, and the next one runs in a new worker."""
    good = Case("forward", "sin", "function", "float32")
    with Worker(Options(samples=1), limit=300.0) as worker:
        assert worker.run(good).status == "pass"
        assert worker.process_id is not None
        os.kill(worker.process_id, 9)
        assert worker.run(good).status == "crash"
        worker.limit = 0.0
        assert worker.run(good).status == "timeout"


def test_commands_that_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says why, and the status is 2."""
    text = tmp_path / "text.jsonl"
    text.write_text("no results\n")
    for arguments, message in (
        (["report", "--results", str(tmp_path / "missing")], "missing: No such file"),
        (["report", "--results", str(tmp_path)], f"{tmp_path}: Is a directory"),
        (["report", "--results", str(text)], f"{text}: expected results that `run` wrote"),
        (["table", "--results", str(text), "--output", str(tmp_path / "x.md")], "expected results"),
        (["run", "--suites", "backward", "--results", str(text)], "no case has what is asked for"),
    ):
        assert command.main(arguments) == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith("error: ") and err.count("\n") == 1
        assert message in err
    assert os.listdir(tmp_path) == ["text.jsonl"]
    for wrong, message in (
        (["--shard", "3/2"], "expected I/N, from 1/N to N/N, got '3/2'"),
        (["--ops", "abs,["], "expected regular expressions, got '['"),
        (["--dtypes", "float31"], "got 'float31'"),
        (["--again", "failed"], "expected some of pass, fail, crash"),
    ):
        with pytest.raises(SystemExit) as end:
            command.main(["run", *wrong])
        assert end.value.code == 2 and message in capsys.readouterr().err
