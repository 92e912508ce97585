"""Arguments that share memory with what is written: same result or same error as on the CPU.

Where the CPU's result depends on the order in which it goes through the elements (a product whose
result is one of its factors), there is nothing to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import compare
import pytest
import torch

Tensors = list[torch.Tensor]
# Of x (4 x 4), a vector v (6), whole numbers n (0..3) and a mask m (4); returns what to look at.
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], object]


def indices(x: torch.Tensor, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=x.device)


def whole(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.long, device=x.device)


CALLS: dict[str, Call] = {
    "add itself transposed": lambda x, v, n, m: x.add_(x.t()),
    "add itself": lambda x, v, n, m: x.add_(x),
    "add a row": lambda x, v, n, m: x.add_(x[0]),
    "multiply shifted": lambda x, v, n, m: v[1:].mul_(v[:-1]),
    "out of both": lambda x, v, n, m: torch.add(v, v, out=v),
    "out of a part": lambda x, v, n, m: torch.add(v[:3], v[3:], out=v[3:]),
    "out between": lambda x, v, n, m: torch.add(v[:3], v[:3], out=v[1:4]),
    "out of columns": lambda x, v, n, m: torch.mul(x[:, 0], x[:, 1], out=x[:, 2]),
    "out of a row": lambda x, v, n, m: torch.mul(x, x[0], out=x),
    "out that repeats": lambda x, v, n, m: torch.mul(v, 2, out=v[:1].expand(6)),
    "unary": lambda x, v, n, m: torch.exp(v[:-1], out=v[1:]),
    "where": lambda x, v, n, m: torch.where(v > 1, v, -v, out=v),
    "clamp by entries": lambda x, v, n, m: v.clamp_(v[1], v[3]),
    "softmax": lambda x, v, n, m: torch.softmax(v, 0, out=v),
    "copy shifted": lambda x, v, n, m: v[1:].copy_(v[:-1]),
    "copy transposed": lambda x, v, n, m: x.copy_(x.t()),
    "copy a row": lambda x, v, n, m: x.copy_(x[0]),
    "copy apart": lambda x, v, n, m: v[:3].copy_(v[3:]),
    "copy interleaved": lambda x, v, n, m: v[::2].copy_(v[1::2]),
    "copy as another type": lambda x, v, n, m: v.copy_(v.view(torch.int32)),
    "set a slice": lambda x, v, n, m: v.__setitem__(slice(1, None), v[:-1]),
    "fill with an element": lambda x, v, n, m: v.fill_(v[2]),
    "fill a row with an element": lambda x, v, n, m: x[1].fill_(x[1, 2]),
    "masked fill with an element": lambda x, v, n, m: x.masked_fill_(m, x[1, 1]),
    "masked fill by itself": lambda x, v, n, m: m.masked_fill_(m, False),
    "masked fill shifted": lambda x, v, n, m: m[1:].masked_fill_(m[:-1], False),
    "index fill with an element": lambda x, v, n, m: v.index_fill_(0, n[::2], v[1]),
    "index fill by itself": lambda x, v, n, m: n.index_fill_(0, n, 7),
    "index fill by a part": lambda x, v, n, m: n.index_fill_(0, n[1:3], 7),
    "index copy": lambda x, v, n, m: x.index_copy_(0, n[:2], x[1:3]),
    "index copy of itself": lambda x, v, n, m: x.index_copy_(0, n.flip(0), x),
    "index add": lambda x, v, n, m: x.index_add_(0, n[:2], x[1:3]),
    "scatter itself": lambda x, v, n, m: x.scatter_(0, n.expand(4, 4).clone(), x),
    "scatter a part": lambda x, v, n, m: v.scatter_(0, n[:2].clone(), v[1:3]),
    "scatter another part": lambda x, v, n, m: v.scatter_(0, n[:2].clone(), v[4:]),
    "scatter by itself": lambda x, v, n, m: n.scatter_(0, n, 9),
    "scatter add": lambda x, v, n, m: v.scatter_add_(0, n[:3].clone(), v[:3]),
    "scatter reduce": lambda x, v, n, m: v.scatter_reduce_(0, n[:3].clone(), v[:3], "amax"),
    "gather": lambda x, v, n, m: torch.gather(v, 0, n, out=v[:4]),
    "gather into the index": lambda x, v, n, m: torch.gather(n * 2, 0, n, out=n),
    "take": lambda x, v, n, m: torch.take(v, n[:2].clone(), out=v[1:3]),
    "select": lambda x, v, n, m: torch.index_select(v, 0, n, out=v[:4]),
    "put": lambda x, v, n, m: v.put_(n, v[:4]),
    "set places": lambda x, v, n, m: v.index_put_((n,), v[:4]),
    "set places by themselves": lambda x, v, n, m: n.index_put_((n,), indices(x, 5)),
    "swap": lambda x, v, n, m: v.__setitem__([0, 1], v[[1, 0]]),
    "masked select": lambda x, v, n, m: torch.masked_select(v[:4], m, out=v[:2]),
    "nonzero": lambda x, v, n, m: torch.nonzero(n.view(4, 1), out=n.view(4, 1)),
    "cat with the first": lambda x, v, n, m: torch.cat([v[:2], n], out=v),
    "cat with the last": lambda x, v, n, m: torch.cat([n, v[:2]], out=v),
    "cat itself": lambda x, v, n, m: torch.cat([v], out=v),
    "cat itself twice": lambda x, v, n, m: torch.cat([v, v], out=v),
    "cat into a part": lambda x, v, n, m: torch.cat([n, n[:1]], out=v[1:]),
    "cat parts": lambda x, v, n, m: torch.cat([v[:1], v[1:2]], out=v[2:4]),
    "stack": lambda x, v, n, m: torch.stack([x[0], x[1]], out=x[:2]),
    "sort": lambda x, v, n, m: torch.sort(v, descending=True, out=(v, whole(v))),
    "sort columns": lambda x, v, n, m: torch.sort(x, dim=0, descending=True, out=(x, whole(x))),
    "sort shifted": lambda x, v, n, m: torch.sort(v[:-1], out=(v[1:], whole(v[1:]))),
    "topk": lambda x, v, n, m: torch.topk(v, 6, out=(v, whole(v))),
    "max": lambda x, v, n, m: torch.max(x, 1, out=(x[:, 0], whole(x[0]))),
    "median": lambda x, v, n, m: torch.median(x, 1, out=(x[:, 0], whole(x[0]))),
    "cumsum": lambda x, v, n, m: torch.cumsum(v, 0, out=v),
    "cumsum transposed": lambda x, v, n, m: x.t().cumsum_(0),
    "norm": lambda x, v, n, m: torch.linalg.vector_norm(v, out=v[0]),
    "dot": lambda x, v, n, m: torch.dot(v, v, out=v[0]),
    "outer product": lambda x, v, n, m: x.addr_(x[0], x[1]),
    "tril": lambda x, v, n, m: torch.tril(x, out=x),
    "inverse": lambda x, v, n, m: torch.linalg.inv(x, out=x),
    "real and imaginary": lambda x, v, n, m: torch.view_as_complex(v.view(3, 2)).real.add_(v[1::2]),
}


def run(call: Call, device: str) -> Tensors | str:
    """What the call leaves, or its error."""
    x = torch.linspace(0.5, 2, 16).view(4, 4) + torch.eye(4)
    m = torch.tensor([True, False, True, False])
    arguments = [x, torch.linspace(0.5, 2, 6), torch.arange(4), m]
    given = [a.to(device) for a in arguments]
    try:
        call(*given)
    except (RuntimeError, IndexError) as error:
        return str(error).split("\n")[0]
    return given


@pytest.fixture(params=["strict", "deferred"], autouse=True)
def each_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    modes = torch.tpu.EagerMode  # type: ignore[attr-defined]
    mode = modes.DEFER_NEVER if request.param == "strict" else modes.DEFER_AND_FUSE
    with torch.tpu.set_eager_mode(mode):  # type: ignore[attr-defined]
        yield


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", CALLS)
def test_result_or_error(name: str, no_fallback: None) -> None:
    expected, actual = run(CALLS[name], "cpu"), run(CALLS[name], compare.DEVICE)
    if isinstance(expected, str) or isinstance(actual, str):
        assert actual == expected
        return
    for got, wanted in zip(actual, expected, strict=True):
        compare.assert_same(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def operators() -> Iterator[torch.library.Library]:
    """Operators that only the CPU has."""
    library = torch.library.Library("torch_tpu_test_overlaps", "DEF")
    library.define("add_lists_(Tensor(a!)[] x, Tensor[] y) -> ()")
    library.define("halve_(Tensor(a!) x, Tensor y) -> (Tensor(a!), Tensor)")
    library.define("twice(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")

    def add_lists(x: Tensors, y: Tensors) -> None:
        for a, b in zip(x, y, strict=True):
            a.add_(b)

    def halve(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.div_(2), y + 1

    def twice(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, x])
        return out.resize_(both.shape).copy_(both)

    library.impl("add_lists_", add_lists, "CPU")
    library.impl("halve_", halve, "CPU")
    library.impl("twice", twice, "CPU")
    yield library
    library._destroy()


def test_computed_on_the_cpu(operators: torch.library.Library) -> None:
    ops = torch.ops.torch_tpu_test_overlaps

    def calls(device: str) -> Tensors:
        x, y, z = (torch.arange(float(n), device=device) for n in (6, 4, 3))
        ops.add_lists_([x, x[2:], y], [x, y, x[:4]])
        complex_numbers = torch.complex(y, y * 2)
        ops.add_lists_([complex_numbers.real, complex_numbers.imag], [complex_numbers.imag, y])
        returned, fresh = ops.halve_(x, x[1:])
        assert returned is x
        ops.twice(z, out=z)
        return [x, y, complex_numbers, fresh, z]

    with torch.tpu.set_fallback("silent"):  # type: ignore[attr-defined]
        actual = calls(compare.DEVICE)
    for got, wanted in zip(actual, calls("cpu"), strict=True):
        compare.assert_same(got, wanted)
