"""A slice of the conformance suite "compile": operators that compile in ways of their own.

The whole suite is `python -m torch_tpu.testing run --suites compile`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from torch_tpu.testing import compiled_calls, databases
from torch_tpu.testing.cases import Case, Options

# By what they have that others do not.
OPERATORS = {
    "values, broadcast": "add where lerp clamp",
    "views of inputs": "transpose split unsqueeze as_strided view_as_complex unfold",
    "views of results": "diagonal_scatter chunk movedim",
    "no tensors among the arguments": "arange linspace full",
    "random numbers": "bernoulli nn.functional.dropout randn_like multinomial",
    "constants in the graph": "unravel_index __getitem__ masked.cumsum",
    "checks of values": "linalg.cholesky linalg.solve lu_solve",
    "shapes that depend on values": "nonzero masked_select unique bincount tensor_split",
    "without a fake kernel": "geqrf histogram histogramdd",
    "on the CPU": "linalg.eig",
    "writes": "index_put scatter_reduce.amax masked_scatter put fill",
    "several results": "sort topk aminmax linalg.svd linalg.lu_factor_ex var_mean",
    "scalars and dtypes": "float_power to polygamma.polygamma_n_0 heaviside",
    "reductions": "sum std cumsum logsumexp norm argmax",
    "products": "matmul einsum addmm linalg.multi_dot",
    "networks": """
        nn.functional.conv2d nn.functional.max_pool2d nn.functional.batch_norm
        nn.functional.layer_norm nn.functional.embedding nn.functional.cross_entropy
        nn.functional.scaled_dot_product_attention nn.functional.grid_sample
        nn.functional.interpolate.bilinear nn.functional.embedding_bag
    """,
}
BACKWARD = re.findall(
    r"\S+",
    """
    where split as_strided index_put sort linalg.svd linalg.solve sum cumsum matmul masked_select
    nn.functional.conv2d nn.functional.max_pool2d nn.functional.batch_norm
    nn.functional.layer_norm nn.functional.embedding nn.functional.cross_entropy
    nn.functional.scaled_dot_product_attention nn.functional.grid_sample
    """,
)
NAMES = [name for names in OPERATORS.values() for name in names.split()]


def slice_of_the_suite() -> list[Case]:
    chosen = {"forward": {*NAMES}, "backward": {*BACKWARD}}
    return [case for case in compiled_calls.cases() if case.op in chosen[case.variant]]


@pytest.mark.parametrize("case", slice_of_the_suite(), ids=lambda case: case.key)
def test_does_compiled_what_the_cpu_does(case: Case) -> None:
    result = compiled_calls.run(case, Options())
    assert result.status == "pass", result.failures or result.reason


def test_slice_names_entries_of_the_database() -> None:
    assert {*NAMES, *BACKWARD} <= databases.operators().keys()


# --- The suite itself ----------------------------------------------------------------------------


def status_of(monkeypatch: pytest.MonkeyPatch, op: Any) -> tuple[str, str]:
    """What the suite makes of an operator that does this in place of addition."""
    monkeypatch.setattr(databases.operators()["add"], "op", op)
    result = compiled_calls.run(Case("compile", "add", "forward", "float32"), Options())
    return result.status, result.reason


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def op(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return a + b + (a.device.type == "tpu")

    assert status_of(monkeypatch, op) == ("fail", "")


def test_what_no_backend_can_trace_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    def op(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        torch._dynamo.graph_break()
        return a + b

    status, reason = status_of(monkeypatch, op)
    assert status == "not applicable" and "graph_break" in reason


def test_the_device_is_compiled_for_and_the_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def op(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if torch.compiler.is_compiling() != (a.device.type == "tpu"):
            raise RuntimeError("in the wrong way")
        return a + b

    assert status_of(monkeypatch, op) == ("pass", "")
