"""The levels at which products of float32 numbers are taken, and what chooses the level."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import subprocess_python
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from compare import dispatch_stats
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_tpu
from torch_tpu import _C, aot

tpu = torch.tpu  # type: ignore[attr-defined]
backends: Any = torch.backends  # of which PyTorch declares only a part

pytestmark = pytest.mark.usefixtures("no_fallback")

LEVELS = ("medium", "high", "highest")
# Largest error at each level, relative to the largest result: a few roundings to 8 bits, to 16
# bits, and to float32.
LIMIT = {"medium": 1.5e-2, "high": 5e-5, "highest": 3e-6}
# At these levels the error is larger than the next one's limit: the rounding does happen.
AT_LEAST = {"medium": 2e-4, "high": 3e-7, "highest": 0.0}


@pytest.fixture(autouse=True)
def only_on_tpu(device: torch.device) -> None:
    """Levels are this device's own."""
    if device.type != "tpu":
        pytest.skip("the levels are those of the device tpu")


@pytest.fixture
def default_level() -> Iterator[None]:
    """PyTorch as it is before anyone sets a level."""
    backends = ("generic", "all"), ("mkldnn", "matmul"), ("cuda", "matmul")
    before = [torch._C._get_fp32_precision_getter(*backend) for backend in backends]
    torch.set_float32_matmul_precision("highest")
    for backend in backends:
        torch._C._set_fp32_precision_setter(*backend, "none")
    yield
    torch.set_float32_matmul_precision("highest")
    for backend, value in zip(backends, before, strict=True):
        torch._C._set_fp32_precision_setter(*backend, value)


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error relative to the largest exact value."""
    wide = torch.complex128 if exact.is_complex() else torch.float64
    difference = actual.detach().cpu().to(wide) - exact.detach()
    return float(difference.abs().max() / exact.detach().abs().max())


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scores near each other, so that the softmax does not hide them."""
    return F.scaled_dot_product_attention(q / 8, k, v)


def recurrent(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The LSTM kernel with one layer and no bias."""
    zero = torch.zeros(1, x.shape[1], 32, device=x.device, dtype=x.dtype)
    out: torch.Tensor = torch.lstm(
        x, (zero, zero), [w / 8, r / 8], False, 1, 0.0, False, False, False
    )[0]
    return out


CONTRACTIONS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((48, 64), (64, 40))),
    "matmul": (torch.matmul, ((3, 1, 16, 64), (5, 64, 24))),
    "bmm": (torch.bmm, ((4, 16, 64), (4, 64, 24))),
    "mv": (torch.mv, ((48, 64), (64,))),
    "dot": (torch.dot, ((512,), (512,))),
    "addmm": (torch.addmm, ((40,), (48, 64), (64, 40))),
    "baddbmm": (torch.baddbmm, ((24,), (4, 16, 64), (4, 64, 24))),
    "addbmm": (torch.addbmm, ((16, 24), (4, 16, 64), (4, 64, 24))),
    "linear": (F.linear, ((7, 64), (32, 64), (32,))),
    "bilinear": (F.bilinear, ((7, 16), (7, 24), (8, 16, 24))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), ((4, 16, 64), (4, 24, 64))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), ((8, 16, 12), (16, 12, 9))),
    "conv1d": (F.conv1d, ((2, 16, 40), (24, 16, 5))),
    "conv2d": (F.conv2d, ((2, 16, 12, 12), (24, 16, 3, 3), (24,))),
    "grouped conv2d": (lambda x, w: F.conv2d(x, w, groups=4), ((2, 16, 12, 12), (24, 4, 3, 3))),
    "conv3d": (F.conv3d, ((1, 4, 6, 6, 6), (5, 4, 3, 3, 3))),
    "conv_transpose2d": (F.conv_transpose2d, ((2, 16, 8, 8), (16, 12, 3, 3))),
    "attention": (attention, ((2, 3, 20, 16), (2, 3, 24, 16), (2, 3, 24, 16))),
    "lstm": (recurrent, ((5, 3, 64), (128, 64), (128, 32))),
}

# The arguments whose gradient is no contraction: they are only added, or it is an outer product.
NO_PRODUCT = {
    "mv": (0,),
    "dot": (0, 1),
    "addmm": (0,),
    "baddbmm": (0,),
    "addbmm": (0,),
    "linear": (2,),
    "conv2d": (2,),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_errors_of_each_level(name: str) -> None:
    function, shapes = CONTRACTIONS[name]
    exact_inputs = [torch.randn(s).double().requires_grad_() for s in shapes]
    exact = function(*exact_inputs)
    seed = torch.randn(exact.shape)
    exact_grads = torch.autograd.grad(exact, exact_inputs, seed.double())
    products = [index not in NO_PRODUCT.get(name, ()) for index in range(len(shapes))]
    for level in LEVELS:
        inputs = [t.detach().float().to("tpu").requires_grad_() for t in exact_inputs]
        with tpu.precision(level):
            out = function(*inputs)
            grads = torch.autograd.grad(out, inputs, seed.to("tpu"))
        assert AT_LEAST[level] < error(out, exact) < LIMIT[level], level
        for grad, wanted, product in zip(grads, exact_grads, products, strict=True):
            assert error(grad, wanted) < LIMIT[level], level
            assert not product or error(grad, wanted) > AT_LEAST[level] / 2, level


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32])
def test_other_dtypes_have_no_levels(dtype: torch.dtype) -> None:
    a, b = (torch.randn(32, 48).mul(8).to(dtype).to("tpu") for _ in range(2))
    image = torch.randn(1, 3, 9, 9).mul(8).to(dtype).to("tpu")
    kernel = torch.randn(2, 3, 3, 3).mul(8).to(dtype).to("tpu")
    results = []
    for level in LEVELS:
        with tpu.precision(level):
            convolved = F.conv2d(image, kernel) if dtype.is_floating_point else image
            results.append(((a @ b.T).cpu(), convolved.cpu()))
    for product, convolved in results[1:]:
        assert torch.equal(product, results[0][0])
        assert torch.equal(convolved, results[0][1])


def test_complex64_has_levels() -> None:
    a, b = (torch.randn(32, 64, dtype=torch.complex64) for _ in range(2))
    exact = a.to(torch.complex128) @ b.to(torch.complex128).T
    for level in LEVELS:
        with tpu.precision(level):
            assert AT_LEAST[level] < error(a.to("tpu") @ b.to("tpu").T, exact) < LIMIT[level], level


def test_medium_is_the_product_of_bfloat16_operands() -> None:
    a, b = torch.randn(64, 96), torch.randn(96, 32)
    rounded = a.bfloat16().double() @ b.bfloat16().double()
    with tpu.precision("medium"):
        assert error(a.to("tpu") @ b.to("tpu"), rounded) < LIMIT["highest"]


ELEMENTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multiply": lambda x: x * x,
    "exp": torch.exp,
    "sum": lambda x: x.sum(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 5),
    "bilinear": lambda x: F.interpolate(x, size=(9, 11), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(9, 11), mode="bicubic"),
    "solve": lambda x: torch.linalg.solve(x, x.mT),
    "fft": lambda x: torch.fft.rfft(x).abs(),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_no_contraction_stays_float32(name: str) -> None:
    x = torch.randn(2, 3, 16, 16).to("tpu")
    results = []
    for level in LEVELS:
        with tpu.precision(level):
            results.append(ELEMENTWISE[name](x).cpu())
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[2])


def test_infinities_and_nan_at_every_level() -> None:
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([[1.0, inf], [nan, 1.0], [-inf, inf], [1e30, 2.0], [0.1, 0.2]])
    b = torch.tensor([[1.0, 0.3], [0.5, 1.0]])
    expected = a @ b
    for level in LEVELS:
        with tpu.precision(level):
            actual = (a.to("tpu") @ b.to("tpu")).cpu()
        torch.testing.assert_close(actual, expected, rtol=1e-2, atol=0, equal_nan=True)


def gradient_error(forward: str | None, backward: str | None) -> float:
    """The error of a gradient whose two passes were at these levels."""
    x, w = torch.randn(32, 64), torch.randn(64, 48)
    device_x = x.to("tpu").requires_grad_()
    if forward:
        with tpu.precision(forward):
            out = device_x @ w.to("tpu")
    else:
        out = device_x @ w.to("tpu")
    seed = torch.randn(32, 48)
    if backward:
        with tpu.precision(backward):
            out.backward(seed.to("tpu"))
    else:
        out.backward(seed.to("tpu"))
    assert device_x.grad is not None
    return error(device_x.grad, seed.double() @ w.double().T)


def test_backward_takes_the_level_where_it_is_called() -> None:
    # The session's level is "highest". The engine runs a backward pass in a thread of its own.
    assert gradient_error("medium", None) < LIMIT["highest"]
    assert AT_LEAST["medium"] < gradient_error(None, "medium") < LIMIT["medium"]
    assert AT_LEAST["high"] < gradient_error("medium", "high") < LIMIT["high"]


def test_cuda_reads_the_level_in_backward_too() -> None:
    # The rule followed above: PyTorch's own setting is one for the process, read when a product is
    # computed. What a backward pass does is therefore decided when it runs.
    x = torch.randn(32, 64, device="tpu", requires_grad=True)
    w, seed = torch.randn(64, 48, device="tpu"), torch.randn(32, 48, device="tpu")
    out = x @ w
    torch.set_float32_matmul_precision("medium")
    try:
        out.backward(seed)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert x.grad is not None
    exact = seed.cpu().double() @ w.cpu().double().T
    assert AT_LEAST["medium"] < error(x.grad, exact) < LIMIT["medium"]


def test_recomputation_takes_the_level_of_the_backward_pass() -> None:
    layer = nn.Linear(64, 64).to("tpu")
    x = torch.randn(8, 64, device="tpu", requires_grad=True)
    levels: list[str] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        levels.append(tpu.current_precision())
        out: torch.Tensor = layer(x).tanh()
        return out

    with tpu.precision("high"):
        out = checkpoint(block, x, use_reentrant=False)
    with tpu.precision("medium"):
        out.sum().backward()
    assert levels == ["high", "medium"]


def test_contexts_nest_and_end() -> None:
    assert tpu.current_precision() == "highest"
    context = tpu.precision(tpu.Precision.HIGH)
    with context:
        assert tpu.current_precision() is tpu.Precision.HIGH
        with tpu.precision("medium"), context:
            assert tpu.current_precision() == "high"
        assert tpu.current_precision() == "high"
    with pytest.raises(KeyError), tpu.precision("medium"):
        raise KeyError
    assert tpu.current_precision() == "highest"


def test_as_a_decorator() -> None:
    @tpu.precision("medium")
    def level() -> str:
        return str(tpu.current_precision())

    assert (level(), level(), tpu.current_precision()) == ("medium", "medium", "highest")


def test_a_context_is_its_threads_own() -> None:
    seen: list[str] = []

    def look() -> None:
        seen.append(tpu.current_precision())
        with tpu.precision("high"):
            seen.append(tpu.current_precision())

    with tpu.precision("medium"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        seen.append(tpu.current_precision())
    assert seen == ["highest", "high", "medium"]


@pytest.mark.parametrize("level", ["HIGH", "default", "", 3, None])
def test_unknown_levels(level: object) -> None:
    with pytest.raises(ValueError, match="'medium', 'high' or 'highest'"):
        tpu.precision(level)


@pytest.mark.usefixtures("default_level")
def test_the_default_is_medium_and_explicit_levels_hold() -> None:
    assert torch.get_float32_matmul_precision() == "highest"  # PyTorch's own, for other devices
    assert tpu.current_precision() == "medium"
    for level in (*LEVELS, "highest", "medium"):
        torch.set_float32_matmul_precision(level)
        assert tpu.current_precision() == level
        assert torch.get_float32_matmul_precision() == level


@pytest.mark.usefixtures("default_level")
def test_the_settings_of_other_devices_are_not_this_ones() -> None:
    before = backends.mkldnn.matmul.fp32_precision
    backends.cuda.matmul.allow_tf32 = True
    assert tpu.current_precision() == "medium"
    backends.cuda.matmul.allow_tf32 = False
    assert tpu.current_precision() == "medium"
    torch._C._set_fp32_precision_setter("cuda", "matmul", "none")
    backends.mkldnn.matmul.fp32_precision = "ieee"
    assert tpu.current_precision() == "medium"
    backends.mkldnn.matmul.fp32_precision = before
    torch.set_float32_matmul_precision("highest")
    backends.cuda.matmul.allow_tf32 = True
    assert tpu.current_precision() == "highest"
    backends.cuda.matmul.allow_tf32 = False


@pytest.mark.usefixtures("default_level")
def test_the_setting_for_all_backends() -> None:
    # PyTorch's own test helpers, which other tests import, forbid plain assignments.
    with backends.__allow_nonbracketed_mutation():
        for value, level in (("ieee", "highest"), ("tf32", "high"), ("bf16", "medium")):
            backends.fp32_precision = value
            assert tpu.current_precision() == level
        backends.fp32_precision = "none"
        assert tpu.current_precision() == "medium"


def test_a_changed_level_is_another_program_once() -> None:
    x = torch.randn(17, 19, device="tpu")
    results = []
    for _ in range(3):
        for level in LEVELS:
            with tpu.precision(level):
                results.append((x @ x.T).cpu())
    before = dispatch_stats()
    for index, level in enumerate(LEVELS):
        with tpu.precision(level):
            assert torch.equal((x @ x.T).cpu(), results[index])
            (x + x).relu()
    after = dispatch_stats()
    # The elementwise operators need one program for all levels.
    assert after["compiles"] + after["loads"] <= before["compiles"] + before["loads"] + 2
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_cpu_is_not_concerned() -> None:
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    product = a @ b
    with tpu.precision("medium"):
        assert torch.equal(a @ b, product)


def test_the_warning_is_said_once() -> None:
    code = """
        import warnings
        import torch, torch_tpu
        x = torch.randn(8, 8, device="tpu")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = x @ x
            x.exp()
            torch.set_float32_matmul_precision("highest")
            x.double() @ x.double()
            x.exp()
            print(len(caught))
            for level in ("highest", "high", "medium"):
                torch.set_float32_matmul_precision(level)
                for _ in range(2):
                    {statement}
        print([w.category is torch_tpu.PerformanceWarning for w in caught])
        print([level in str(w.message) for w, level in zip(caught, ("'highest'", "'high'"))])
        print([w.filename for w in caught])
    """
    # The line is the user's, not one of the layer's.
    for statement in (
        "x @ x",
        "torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2])",
        "torch.nn.Linear(8, 8, device='tpu')(x)",
    ):
        out = subprocess_python.run_quietly(code.format(statement=statement)).split("\n")
        assert out[:4] == ["0", "[True, True]", "[True, True]", "['<string>', '<string>']"]


def test_the_warning_can_be_hidden_or_an_error() -> None:
    code = """
        import warnings
        import torch, torch_tpu
        warnings.simplefilter({action!r}, torch_tpu.PerformanceWarning)
        torch.set_float32_matmul_precision("high")
        x = torch.ones(8, 8, device="tpu", requires_grad=True)
        print((x @ x).sum().item())
    """
    assert subprocess_python.run_quietly(code.format(action="ignore")) == "512.0\n"
    message = subprocess_python.run_failing(code.format(action="error"))
    assert "PerformanceWarning: float32 matrix products at precision 'high'" in message


def test_no_warning_at_the_default() -> None:
    out = subprocess_python.run_quietly(
        """
        import torch
        layer = torch.nn.Linear(8, 8, device="tpu")
        layer(torch.ones(2, 8, device="tpu")).sum().backward()
        print(torch.tpu.current_precision().value, torch.get_float32_matmul_precision())
        """
    )
    assert out == "medium highest\n"


def test_the_warning_of_a_backward_pass() -> None:
    # Made in the engine's thread: it must reach the filters all the same.
    message = subprocess_python.run_failing(
        """
        import warnings
        import torch, torch_tpu
        warnings.simplefilter("error", torch_tpu.PerformanceWarning)
        x = torch.ones(8, 8, device="tpu", requires_grad=True)
        y = x @ x
        with torch.tpu.precision("highest"):
            y.sum().backward()
        """
    )
    assert "PerformanceWarning: float32 matrix products at precision 'highest'" in message


def test_the_category_is_a_warning_of_users() -> None:
    assert issubclass(torch_tpu.PerformanceWarning, UserWarning)


@pytest.fixture
def program_of(tmp_path: Path) -> Callable[[str, str], str]:
    """Returns the program of a statement at a level, as it is written for a TPU."""

    def written(statement: str, level: str) -> str:
        folder = tmp_path / level
        folder.mkdir()
        subprocess_python.run(
            f"""
            import torch
            from torch_tpu import _C
            _C.set_precision_emulated(False)
            a = torch.empty(1024, 1024, device="tpu").zero_()
            with torch.tpu.precision({level!r}):
                {statement}
            """,
            TORCH_TPU_DUMP_STABLEHLO=str(folder),
        )
        texts = [path.read_text() for path in folder.iterdir()]
        (text,) = [t for t in texts if "dot_general" in t or "stablehlo.convolution" in t]
        return text

    return written


STATEMENTS = {
    "matmul": "a @ a",
    "conv2d": "torch.conv2d(a.view(4, 16, 128, 128), a[:1, :144].reshape(1, 16, 3, 3))",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_tpus_program_names_the_level(
    program_of: Callable[[str, str], str], statement: str
) -> None:
    for level, name in (("medium", None), ("high", "HIGH"), ("highest", "HIGHEST")):
        text = program_of(statement, level)
        found = re.findall(r"#stablehlo<precision (\w+)>", text)
        assert found == ([name, name] if name else []), text
        assert "reduce_precision" not in text


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, an optional extra, is not installed"
)
@pytest.mark.single_operators
def test_a_tpu_takes_more_passes(program_of: Callable[[str, str], str]) -> None:
    # A v5e has four units that take 128 x 128 products a cycle. The compiler notes in the
    # executable how long each part should take; its figures of costs do not know of passes.
    one_pass = 1024**3 / (4 * 128**2)
    passes = {}
    for level in LEVELS:
        executable = aot.compile_stablehlo(program_of("a @ a", level), "v5e:2x2").serialize()
        cycles = re.findall(rb'"estimated_cycles":"(\d+)"', executable)
        passes[level] = max(map(int, cycles)) / one_pass
    # Beside the passes there is the time memory takes.
    assert 1 <= passes["medium"] < 3 <= passes["high"] < 4 < 6 <= passes["highest"] < 7, passes


def test_emulation_can_be_left_to_the_compiler() -> None:
    a = torch.randn(32, 64, device="tpu")
    exact = a.cpu().double() @ a.cpu().double().T
    _C.set_precision_emulated(False)
    try:
        with tpu.precision("medium"):
            # The CPU's compiler computes in float32 whatever it is asked for.
            assert error(a @ a.T, exact) < LIMIT["highest"]
    finally:
        _C.set_precision_emulated(None)
    with tpu.precision("medium"):
        assert error(a @ a.T, exact) > AT_LEAST["medium"]
