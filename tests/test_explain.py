"""`torch.tpu.explain`: what was dispatched, where its program came from, what made it new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import subprocess_python
import torch

from torch_tpu import tpu
from torch_tpu.tpu import EagerMode

STRICT = EagerMode.DEFER_NEVER
DEBUG = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
DEFERRED = EagerMode.DEFER_AND_FUSE


@pytest.fixture(autouse=True)
def begin_strict() -> Iterator[None]:
    """Begins with strict, and puts the default mode back."""
    before = tpu.eager_mode()
    tpu.set_eager_mode(STRICT)
    yield
    tpu.set_eager_mode(before)


def _fresh(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, device=device)


@pytest.mark.parametrize("mode", [STRICT, DEBUG])
def test_one_operator_is_one_program(device: torch.device, mode: EagerMode) -> None:
    x = _fresh(device, 3, 11)
    with tpu.set_eager_mode(mode), tpu.explain() as first:
        x.sigmoid()
    with tpu.set_eager_mode(mode), tpu.explain() as again:
        x.sigmoid()
    (program,), (known,) = first.programs, again.programs
    assert program.calls == known.calls == ("aten::sigmoid(float32[3, 11])",)
    assert program.reason == f"{'debug' if mode is DEBUG else 'strict'} mode: one operator"
    assert known.known and known.origin == "in memory" and known.difference == ""


@pytest.mark.parametrize("mode", [STRICT, DEFERRED])
def test_where_a_program_came_from(mode: EagerMode, tmp_path: Path) -> None:
    """Compiled by one process, from the cache in the next."""
    code = f"""
        import torch
        x = torch.ones(3, 5).to("tpu")
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode({int(mode)})), torch.tpu.explain() as e:
            x.exp().cpu()
        (p,) = e.programs
        print(p.known, p.from_cache, p.compile_seconds > 0, p.origin.split(" in ")[0])
    """

    def run() -> str:
        return subprocess_python.run(
            code,
            TORCH_TPU_TIER2_COMPILATION_CACHE="disabled",
            TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=str(tmp_path),
        ).strip()

    assert run() == "False False True compiled"
    assert run() == "False True False from the cache"


def _difference(first: Callable[[], object], second: Callable[[], object]) -> str:
    """What made the last program of `second` new, after `first`, which nobody explained."""
    first()
    with tpu.explain() as explanation:
        second()
    program = explanation.programs[-1]
    assert not program.known
    assert f"new: {program.difference}" in str(explanation)
    return program.difference


def test_dimension(device: torch.device) -> None:
    a, b = _fresh(device, 5, 32, 3), _fresh(device, 5, 48, 3)
    assert _difference(a.erf, b.erf) == "argument 'self': dimension 1 is 48, was 32"


def test_rank(device: torch.device) -> None:
    a, b = _fresh(device, 5, 2), _fresh(device, 5, 2, 2)
    assert _difference(a.tan, b.tan) == "argument 'self': its dimensions are 3, was 2"


def test_dtype(device: torch.device) -> None:
    a = _fresh(device, 6, 7)
    b = a.bfloat16()
    assert _difference(b.sinh, a.sinh) == "argument 'self': dtype float32, was bfloat16"


def test_stride(device: torch.device) -> None:
    a = _fresh(device, 6, 6)
    b = a.t()
    assert _difference(a.cosh, b.cosh) == "argument 'self': the stride of dimension 0 is 1, was 6"


def test_attribute(device: torch.device) -> None:
    a = _fresh(device, 6, 7)
    assert _difference(lambda: a.cumsum(0), lambda: a.cumsum(1)) == "dim is 1, was 0"


def test_entry_of_a_list(device: torch.device) -> None:
    a = _fresh(device, 6, 7, 2)
    assert _difference(lambda: a.flip(0, 1), lambda: a.flip(0, 2)) == "dims[1] is 2, was 1"


def test_tensor_in_a_list(device: torch.device) -> None:
    a, b = _fresh(device, 2, 7), _fresh(device, 3, 7)
    difference = _difference(lambda: torch.cat([a, b, a]), lambda: torch.cat([a, b, b]))
    assert difference == "argument 'tensors', entry 2: dimension 0 is 3, was 2"


def test_number_that_saves_work(device: torch.device) -> None:
    a = _fresh(device, 6, 8)
    difference = _difference(
        lambda: torch.addcmul(a, a, a, value=0.5), lambda: torch.addcmul(a, a, a, value=1)
    )
    assert difference.startswith("value is 1, was another number") or "dtype" in difference


def test_shared_storage(device: torch.device) -> None:
    a, b = _fresh(device, 6, 9), _fresh(device, 6, 9)
    difference = _difference(lambda: torch.atan2(a, b), lambda: torch.atan2(a, a))
    assert difference == "argument 'other': it shares its storage with other arguments than before"


def test_default_dtype(device: torch.device) -> None:
    a = torch.ones(6, 9, dtype=torch.int32, device=device)

    def second() -> None:
        torch.set_default_dtype(torch.float64)
        try:
            a.log2()
        finally:
            torch.set_default_dtype(torch.float32)

    assert _difference(a.log2, second) == "the default dtype is float64, was float32"


def test_precision(device: torch.device) -> None:
    a = _fresh(device, 6, 10)

    def product(level: str) -> None:
        with tpu.precision(level):
            a @ a.t()

    difference = _difference(lambda: product("medium"), lambda: product("high"))
    assert difference.startswith("the precision of float32 products is high")


def test_nearest_of_several(device: torch.device) -> None:
    shapes = [(4, 20), (4, 21), (5, 30)]
    for shape in shapes:
        _fresh(device, *shape).expm1()
    c = _fresh(device, 5, 31)
    assert _difference(c.abs, c.expm1) == "argument 'self': dimension 1 is 31, was 30"


def test_first_of_its_operator_has_no_difference(device: torch.device) -> None:
    x = _fresh(device, 3, 3)
    with tpu.explain() as explanation:
        x.digamma()
    assert explanation.programs[-1].difference == ""


# --- fused programs ---------------------------------------------------------------------------


Results = torch.Tensor | tuple[torch.Tensor, ...]


def _fused(
    device: torch.device, body: Callable[[torch.Tensor], Results], *shape: int
) -> tpu.Dispatched:
    """The program of `body` on zeros of the shape, which has to be one."""
    x = _fresh(device, *shape).cpu().to(device)
    with tpu.set_eager_mode(DEFERRED), tpu.explain() as explanation:
        result = body(x)
        for t in result if isinstance(result, tuple) else (result,):
            t.cpu()
    (program,) = explanation.programs
    return program


@pytest.mark.parametrize("mode", list(EagerMode))
def test_factories_say_what_they_make(device: torch.device, mode: EagerMode) -> None:
    """Their operands, if they have any, do not tell it."""
    x = _fresh(device, 3, 4)
    with tpu.set_eager_mode(mode), tpu.explain() as explanation:
        made = [
            torch.randn(3, 4, device=device, dtype=torch.bfloat16),
            torch.full((2,), 7, device=device),
            torch.randperm(9, device=device),
            torch.eye(3, device=device),
            x.new_zeros(8),
            torch.ones_like(x, dtype=torch.int32),
        ]
        tpu.synchronize()
    assert [call for program in explanation.programs for call in program.calls] == [
        "aten::randn() -> bfloat16[3, 4]",
        "aten::full() -> int64[2]",
        "aten::randperm() -> int64[9]",
        "aten::eye() -> float32[3, 3]",
        "aten::new_zeros(float32[3, 4]) -> float32[8]",
        "aten::ones_like(float32[3, 4]) -> int32[3, 4]",
    ]
    assert [t.dtype for t in made[:2]] == [torch.bfloat16, torch.int64]


def test_fused_program(device: torch.device) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return (x * 2.5).sin() + x

    first, again = _fused(device, body, 4, 17), _fused(device, body, 4, 17)
    assert [call.partition("(")[0] for call in first.calls] == [
        "aten::mul.Tensor",
        "aten::sin",
        "aten::add.Tensor",
    ]
    assert first.reason == "a value was read"
    assert not first.known and again.known and again.difference == ""
    assert first.calls == again.calls


def test_fused_other_shape(device: torch.device) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return (x * 2.5).cos() + x

    _fused(device, body, 4, 18)
    assert _fused(device, body, 4, 19).difference == (
        "operator 0 (aten::mul.Tensor(float32[4, 19], float64[])): "
        "argument 'self': dimension 1 is 19, was 18"
    )


def test_fused_other_operator(device: torch.device) -> None:
    _fused(device, lambda x: (x * 2.5).erf().exp().sum(1), 4, 20)
    new = _fused(device, lambda x: (x * 2.5).erf().log().sum(1), 4, 20)
    assert new.difference == "operator 2 (aten::log(float32[4, 20])), was aten::exp(float32[4, 20])"


def test_fused_longer_and_shorter(device: torch.device) -> None:
    _fused(device, lambda x: x.asinh().atan().exp(), 4, 21)
    shorter = _fused(device, lambda x: x.asinh().atan(), 4, 21)
    assert "it ends where a known one goes on with operator 2 (aten::exp" in shorter.difference
    longer = _fused(device, lambda x: x.asinh().atan().exp().exp(), 4, 21)
    assert "it goes on with operator 3 (aten::exp" in longer.difference


def test_fused_other_operand(device: torch.device) -> None:
    def body(x: torch.Tensor, first: bool) -> torch.Tensor:
        a = x.acosh()
        return a.exp() * (x if first else a)

    _fused(device, lambda x: body(x, True), 4, 22)
    difference = _fused(device, lambda x: body(x, False), 4, 22).difference
    assert difference.startswith("operator 2 (aten::mul.Tensor(float32[4, 22], float32[4, 22])): ")
    assert "operand 1 is a result of operator 0 (aten::acosh" in difference
    assert difference.endswith("was input 0 of the graph")


def test_fused_other_values_alive(device: torch.device) -> None:
    def body(x: torch.Tensor, keep: bool) -> tuple[torch.Tensor, ...]:
        a = x.atanh()
        b = a.exp()
        return (b, a) if keep else (b,)

    _fused(device, lambda x: body(x, False), 4, 23)
    assert (
        _fused(device, lambda x: body(x, True), 4, 23).difference
        == "a result of operator 0 (aten::atanh(float32[4, 23])) is still held when the graph "
        "ends, was not"
    )
    _fused(device, lambda x: body(x, True), 4, 24)
    assert (
        _fused(device, lambda x: body(x, False), 4, 24).difference
        == "a result of operator 0 (aten::atanh(float32[4, 24])) is not held any more, was"
    )


def test_fused_other_donation(device: torch.device) -> None:
    def run(keep: bool) -> tpu.Dispatched:
        x = _fresh(device, 4, 25).cpu().to(device)
        with tpu.set_eager_mode(DEFERRED), tpu.explain() as explanation:
            y = x.log1p().exp()
            if not keep:
                del x
            y.cpu()
        return explanation.programs[0]

    run(True)
    assert run(False).difference == "the memory of input 0 is taken over, was not"


def test_why_it_was_cut(device: torch.device) -> None:
    x = _fresh(device, 4, 26)
    with tpu.set_eager_mode(DEFERRED), tpu.explain() as explanation:
        a = x + 1.5
        a.cpu()
        b = x + 1.5
        tpu.synchronize()
        c = x
        for _ in range(50):
            c = (c.sin() + 0.5).cos()
        del a, b
    reasons = [p.reason for p in explanation.programs]
    assert reasons[:2] == ["a value was read", "synchronize"]
    assert "a repetition ended" in reasons


def test_contexts_nest(device: torch.device) -> None:
    x = _fresh(device, 3, 12)
    with tpu.explain() as outer:
        x.sigmoid()
        with tpu.explain() as inner:
            x.tanh()
        x.exp()
    assert [len(e.programs) for e in (outer, inner)] == [3, 1]
    x.exp()
    with tpu.explain() as nothing:
        pass
    assert nothing.programs == [] and str(nothing) == ""
