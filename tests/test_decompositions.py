"""Operators without a lowering rule: PyTorch's decomposition as one program, else the CPU.

Nearly every ATen operator has a rule, so copies of some of them are defined here under another
name: these have PyTorch's decomposition and nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import subprocess_python
import torch
from compare import assert_same, dispatch_stats, named_tensors
from torch._decomp import decomposition_table

Call = Callable[[Any], Any]

NAMESPACE = "torch_tpu_test"


def without_rule(library: torch.library.Library, name: str) -> None:
    """Defines a copy of an ATen operator, with its decomposition where it has one."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        op = getattr(packet, overload)
        library.define(str(op._schema).replace("aten::", ""))
        copy = getattr(getattr(getattr(torch.ops, NAMESPACE), name), overload)
        if op in decomposition_table:
            decomposition_table[copy] = decomposition_table[op]


X = torch.randn(3, 4)
Y = torch.rand(3, 4) + 0.5
WEIGHT = torch.rand(4)

# Name, and a call of it given a namespace of operators and a way to place tensors.
CALLS: dict[str, Callable[[Any, Call], Any]] = {
    "hardswish": lambda ops, to: ops.hardswish(to(X)),
    "hardtanh_backward": lambda ops, to: ops.hardtanh_backward(to(Y), to(X), -0.5, 0.5),
    "elu": lambda ops, to: ops.elu(to(X), 1.5, 1.0, 2),
    "elu_backward": lambda ops, to: ops.elu_backward(to(Y), 1.5, 1.0, 2.0, False, to(X)),
    "gelu_backward": lambda ops, to: ops.gelu_backward(to(Y), to(X), approximate="tanh"),
    "silu_backward": lambda ops, to: ops.silu_backward(to(Y), to(X)),
    "softplus_backward": lambda ops, to: ops.softplus_backward(to(Y), to(X), 2, 20),
    "threshold": lambda ops, to: ops.threshold(to(X), 0.1, 20),
    "_softmax": lambda ops, to: ops._softmax(to(X), -1, False),
    "_log_softmax_backward_data": lambda ops, to: ops._log_softmax_backward_data(
        to(Y), to(X), 1, torch.float32
    ),
    "native_layer_norm": lambda ops, to: ops.native_layer_norm(
        to(X), [4], to(WEIGHT), to(WEIGHT), 1e-5
    ),
    "native_group_norm": lambda ops, to: ops.native_group_norm(
        to(X.view(1, 4, 3)), to(WEIGHT), None, 1, 4, 3, 2, 1e-5
    ),
    "binary_cross_entropy": lambda ops, to: ops.binary_cross_entropy(
        to(Y / 2), to((X > 0).float()), None, 1
    ),
    "huber_loss": lambda ops, to: ops.huber_loss(to(X), to(Y), 2, 0.7),
    "nll_loss_forward": lambda ops, to: ops.nll_loss_forward(
        to(X), to(torch.tensor([0, 3, 1])), to(WEIGHT), 1, -100
    ),
    "addcmul": lambda ops, to: ops.addcmul(to(X), to(Y), to(Y), value=0.3),
    "lerp": lambda ops, to: ops.lerp(to(X), to(Y), 0.25),
    "logit": lambda ops, to: ops.logit(to(Y / 2), 1e-3),
    "masked_fill": lambda ops, to: ops.masked_fill(to(X), to(X > 0), 7.5),
    "nan_to_num": lambda ops, to: ops.nan_to_num(to(X / 0), 1.0, 2.0, -3.0),
    "sinc": lambda ops, to: ops.sinc(to(X)),
    "xlogy": lambda ops, to: ops.xlogy(to(X), to(Y)),
    "rot90": lambda ops, to: ops.rot90(to(X), 1, [0, 1]),
    "unfold_backward": lambda ops, to: ops.unfold_backward(to(torch.ones(2, 2)), [4], 0, 2, 1),
    "slice_backward": lambda ops, to: ops.slice_backward(to(X), [5, 4], 0, 0, 5, 2),
    "select_backward": lambda ops, to: ops.select_backward(to(WEIGHT), [3, 4], 0, 1),
    "tril": lambda ops, to: ops.tril(to(X), 1),
    "im2col": lambda ops, to: ops.im2col(to(X.view(1, 1, 3, 4)), [2, 2], [1, 1], [0, 0], [1, 1]),
    "embedding": lambda ops, to: ops.embedding(to(X), to(torch.tensor([[2, 0], [1, 1]]))),
    "cumsum": lambda ops, to: ops.cumsum(to(X), 1, dtype=torch.float64),
    "mean": lambda ops, to: ops.mean.dim(to(X), [0], True, dtype=torch.float64),
}
IN_PLACE = {
    "hardswish_": lambda ops, to, x: ops.hardswish_(x),
    "addcmul_": lambda ops, to, x: ops.addcmul_(x, to(Y), to(Y), value=0.3),
    "lerp_": lambda ops, to, x: ops.lerp_.Scalar(x, to(Y), 0.25),
    "masked_fill_": lambda ops, to, x: ops.masked_fill_.Scalar(x, to(X > 0), 2.0),
    "elu_": lambda ops, to, x: ops.elu_(x),
    "logit_": lambda ops, to, x: ops.logit_(x, 0.1),
    "threshold_": lambda ops, to, x: ops.threshold_(x, 0.1, 20),
}
OUT = {
    "sinc": lambda ops, to, out: ops.sinc.out(to(X), out=out),
    "elu": lambda ops, to, out: ops.elu.out(to(X), 1.5, out=out),
    "logit": lambda ops, to, out: ops.logit.out(to(Y / 2), 0.1, out=out),
    "xlogy": lambda ops, to, out: ops.xlogy.OutTensor(to(X), to(Y), out=out),
}


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    """The copies, as `torch.ops.<namespace>`."""
    library = torch.library.Library(NAMESPACE, "DEF")
    for name in sorted({*CALLS, *IN_PLACE, *OUT}):
        without_rule(library, name)
    yield getattr(torch.ops, NAMESPACE)
    library._destroy()


def stats(key: str) -> int:
    return int(dispatch_stats()[key])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.single_operators
def test_one_program(name: str, ops: Any, device: torch.device, no_fallback: None) -> None:
    expected = CALLS[name](torch.ops.aten, lambda t: t.clone())
    actual = CALLS[name](ops, lambda t: t.to(device))
    for (what, got), (_, want) in zip(named_tensors(actual), named_tensors(expected), strict=True):
        assert_same(got, want, rtol=1e-4, atol=1e-5, what=what)
    # The second time nothing is traced or compiled, and one program runs.
    arguments: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        arguments.append(t.to(device))
        return arguments[-1]

    CALLS[name](ops, keep)
    before, compiled = stats("programs"), stats("compiles") + stats("loads")
    queue = iter(arguments)
    CALLS[name](ops, lambda t: next(queue))
    assert stats("compiles") + stats("loads") == compiled
    assert stats("programs") == before + 1


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str, ops: Any, device: torch.device, no_fallback: None) -> None:
    base = torch.rand(3, 8)
    other = base.to(device)
    expected, actual = base[:, ::2], other[:, ::2]
    for _ in range(2):
        IN_PLACE[name](torch.ops.aten, lambda t: t, expected)
        result = IN_PLACE[name](ops, lambda t: t.to(device), actual)
        assert result is actual
        assert_same(other, base, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OUT)
def test_out(name: str, ops: Any, device: torch.device, no_fallback: None) -> None:
    for size in ((0,), (3, 4)):
        expected = OUT[name](torch.ops.aten, lambda t: t, torch.empty(size))
        actual = OUT[name](ops, lambda t: t.to(device), torch.empty(size, device=device))
        assert_same(actual, expected, rtol=1e-4, atol=1e-5)
    wide = torch.zeros(4, 3, device=device)
    OUT[name](ops, lambda t: t.to(device), wide.t())
    assert_same(wide.t().contiguous(), expected, rtol=1e-4, atol=1e-5)


def test_numbers_are_part_of_the_program(ops: Any, device: torch.device) -> None:
    # A decomposition may decide by them.
    for alpha in (0.5, 1.5, 0.0):
        assert_same(
            ops.elu(X.to(device), alpha), torch.ops.aten.elu(X, alpha), rtol=1e-5, atol=1e-6
        )


def test_errors_in_a_decomposition(ops: Any, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=r"hardtanh_backward|size|broadcast|shape"):
        ops.hardtanh_backward(torch.ones(3, device=device), torch.ones(2, device=device), -1, 1)
    with pytest.raises(Exception, match="only supports a 0-dimensional value tensor"):
        ops.masked_fill.Tensor(
            X.to(device), (X > 0).to(device), torch.tensor([1.0, 2.0], device=device)
        )


def test_own_operator_with_a_decomposition(device: torch.device, no_fallback: None) -> None:
    library = torch.library.Library("torch_tpu_test_own", "DEF")
    library.define(
        "norm_and_scale(Tensor x, float factor, *, ScalarType? dtype=None) -> (Tensor, Tensor)"
    )
    op = torch.ops.torch_tpu_test_own.norm_and_scale.default
    seen = []

    def decomposed(
        x: torch.Tensor, factor: float, *, dtype: torch.dtype | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(dtype)
        norm = x.square().sum(-1, dtype=dtype).sqrt()
        noise = torch.rand_like(x)
        scaled = torch.where(noise >= 0, x * factor, noise)
        scaled[0] = 0
        return norm, scaled

    decomposition_table[op] = decomposed
    try:
        for _ in range(3):
            norm, scaled = op(X.to(device), 2.5, dtype=torch.float64)
        assert_same(norm, X.square().sum(-1, dtype=torch.float64).sqrt())
        expected = X * 2.5
        expected[0] = 0
        assert_same(scaled, expected)
        assert seen == [torch.float64]  # traced once
    finally:
        del decomposition_table[op]
        library._destroy()


def test_random_decomposition_draws_anew(device: torch.device) -> None:
    library = torch.library.Library("torch_tpu_test_random", "DEF")
    library.define("noise(Tensor x) -> Tensor")
    op = torch.ops.torch_tpu_test_random.noise.default
    decomposition_table[op] = lambda x: torch.stack([torch.rand_like(x), torch.rand_like(x)])
    try:
        x = torch.zeros(1000, device=device)
        torch.manual_seed(3)
        first, second = op(x), op(x)
        torch.manual_seed(3)
        assert_same(op(x), first.cpu())
        assert_same(op(x), second.cpu())
        rows = [*first.cpu(), *second.cpu()]
        for i, row in enumerate(rows):
            assert abs(float(row.mean()) - 0.5) < 0.05
            for other in rows[:i]:
                assert not torch.equal(row, other)
    finally:
        del decomposition_table[op]
        library._destroy()


def test_needs_values(device: torch.device) -> None:
    # A decomposition that looks at values cannot be one program; it runs op by op.
    library = torch.library.Library("torch_tpu_test_values", "DEF")
    library.define("positive_part(Tensor x) -> Tensor")
    op = torch.ops.torch_tpu_test_values.positive_part.default
    decomposition_table[op] = lambda x: x[x > 0] if x.sum().item() != 0 else x
    try:
        for _ in range(2):
            assert_same(op(X.to(device)), X[X > 0])
    finally:
        del decomposition_table[op]
        library._destroy()


def test_calls_itself(ops: Any, device: torch.device) -> None:
    library = torch.library.Library("torch_tpu_test_itself", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    op = torch.ops.torch_tpu_test_itself.twice.default
    decomposition_table[op] = lambda x: op(x)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(op(X.to(device)), X * 2)
    finally:
        del decomposition_table[op]
        library._destroy()


# --- The CPU ------------------------------------------------------------------------------------

# No compiler for a device has it.
EIGENVALUES = "torch.linalg.eigvals(x)"


def test_warns_once_per_operator() -> None:
    _, errors = subprocess_python.outputs(
        f"""
        import torch
        x = torch.linspace(-1, 1, 16).view(4, 4)
        want = {EIGENVALUES}
        x = x.to("tpu")
        for _ in range(3):
            got = {EIGENVALUES}
        assert torch.allclose(got.cpu(), want), (got, want)
        assert torch.tpu.dispatch_stats()["fallbacks"] == {{"aten::_linalg_eigvals": 3}}
        """,
        TORCH_TPU_FALLBACK="warn",
    )
    assert errors.count("runs on the CPU") == 1
    assert "_linalg_eigvals" in errors


def test_silent() -> None:
    subprocess_python.run_quietly(
        f"""
        import torch
        x = torch.ones(3, 3, device="tpu")
        {EIGENVALUES}
        assert torch.tpu.dispatch_stats()["fallbacks"] == {{"aten::_linalg_eigvals": 1}}
        """,
        TORCH_TPU_FALLBACK="silent",
    )


def test_error() -> None:
    errors = subprocess_python.run_failing(
        f"""
        import torch
        x = torch.ones(3, 3, device="tpu")
        {EIGENVALUES}
        """,
        TORCH_TPU_FALLBACK="error",
    )
    assert "NotImplementedError: aten::_linalg_eigvals would run on the CPU" in errors
    assert "TORCH_TPU_FALLBACK=error" in errors


def test_wrong_policy() -> None:
    errors = subprocess_python.run_failing(
        f"""
        import torch
        x = torch.ones(3, 3, device="tpu")
        {EIGENVALUES}
        """,
        TORCH_TPU_FALLBACK="never",
    )
    assert "expected warn, silent or error, got 'never'" in errors


def test_cpu_operator_keeps_results_on_the_device(device: torch.device) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.linspace(-2, 2, 36).view(6, 6)
        assert_same(torch.linalg.eigvals(x.to(device)), torch.linalg.eigvals(x))
        view = torch.zeros(6, 2, device=device, dtype=torch.complex64)
        torch.linalg.eigvals(x.to(device), out=view[:, 1])
        assert_same(view[:, 1].clone(), torch.linalg.eigvals(x))
