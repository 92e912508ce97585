"""Models as StableHLO programs (torch.tpu.export), compiled and run on this process's device."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import compare
import pytest
import subprocess_python
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from torch_tpu import aot, tpu
from torch_tpu.export import StableHLOProgram, to_stablehlo


class Counting(nn.Module):
    """Parameters, both kinds of buffers, a constant; some buffers are written."""

    calls: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.shift = torch.tensor([1.0, 2.0, 3.0])
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor, *, factor: float = 2.0) -> dict[str, Any]:
        self.calls += 1
        y = self.norm(self.linear(x)) * self.scale + self.shift
        return {"y": y * factor, "rows": x.shape[0], "sums": [y.sum(0), None]}


class Lambda(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def assert_as_eager(model: nn.Module, *args: Any) -> None:
    """The exported program gives on the device what the model gives on the CPU."""
    program = aot.compile(model, "device", args=args)
    actual = pytree.tree_leaves(program.bind(model)(*args))
    with torch.no_grad():
        expected = pytree.tree_leaves(model(*args))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        compare.assert_same(
            one, other.resolve_conj().resolve_neg().contiguous(), rtol=1e-5, atol=1e-5
        )


def under_autocast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y
    return z.float() * 2


def types_of_main(program: StableHLOProgram) -> tuple[list[str], list[str]]:
    head = re.search(r"@main\((.*)\) -> \((.*)\) \{", program.text)
    assert head is not None
    inputs, outputs = (re.findall(r"tensor<(\w*(?:<\w*>)?)>", part) for part in head.groups())
    return inputs, outputs


def test_names() -> None:
    module = importlib.import_module("torch.tpu.export")
    assert module is torch.tpu.export  # type: ignore[attr-defined]
    assert module.to_stablehlo is to_stablehlo


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch's, of its own pytree code
def test_inputs_and_outputs_are_the_signatures() -> None:
    exported = export(Counting(), (torch.randn(2, 4),), {"factor": 2.0})
    program = to_stablehlo(exported)
    signature = exported.run_decompositions({}).graph_signature
    names = [spec.arg.name for spec in signature.input_specs]
    assert [v.name for v in program.inputs] == [n for n in names if n != "factor"]
    assert {v.target: v.kind for v in program.inputs if v.target} == {
        "linear.weight": "parameter",
        "linear.bias": "parameter",
        "norm.weight": "parameter",
        "norm.bias": "parameter",
        "norm.running_mean": "buffer",
        "norm.running_var": "buffer",
        "norm.num_batches_tracked": "buffer",
        "calls": "buffer",
        "scale": "buffer",
        "shift": "constant",
    }
    # The number of rows and None are no tensors.
    kinds = [(spec.kind.name.lower(), spec.target) for spec in signature.output_specs]
    assert [(v.kind, v.target) for v in program.outputs] == [*kinds[:4], *kinds[4:5], kinds[6]]
    letters = {torch.float32: "f32", torch.int64: "i64"}
    for values, types in zip(
        (program.inputs, program.outputs), types_of_main(program), strict=True
    ):
        assert types == ["x".join([*map(str, v.shape), letters[v.dtype]]) for v in values]
    # What is written keeps its memory.
    assert program.text.count("tf.aliasing_output") == 4
    assert set(program.constants) == {"scale", "shift"}


def test_written_buffers_and_structured_results() -> None:
    model, x = Counting(), torch.randn(5, 4)
    program = aot.compile(model, "device", args=(x,), kwargs={"factor": 3.0})
    for mode in tpu.EagerMode:
        with tpu.set_eager_mode(mode):
            bound = program.bind(model)
            for _ in range(2):
                expected, actual = model(x, factor=3.0), bound(x, factor=3.0)
                assert set(actual) == {"y", "rows", "sums"}
                compare.assert_same(actual["y"], expected["y"].detach(), rtol=1e-5, atol=1e-5)
                assert actual["rows"] == 5 and actual["sums"][1] is None
            for name, buffer in model.named_buffers():
                compare.assert_same(bound.state[name], buffer, rtol=1e-5, atol=1e-5)
    assert bound.state["calls"].item() == 2 * len(tpu.EagerMode)


def test_model_on_the_device_shares_its_tensors() -> None:
    model, x = Counting().to("tpu"), torch.randn(5, 4, device="tpu")
    model.shift = model.shift.to("tpu")
    bound = aot.compile(model, "device", args=(x,)).bind(model)
    bound(x)
    assert model.calls.item() == 1
    assert bound.state["linear.weight"].data_ptr() == model.linear.weight.data_ptr()


@pytest.mark.parametrize(
    ("function", "args"),
    [
        pytest.param(lambda x: x.t().reshape(-1), (torch.randn(3, 4).t(),), id="strides"),
        pytest.param(
            lambda x: (x, x.mT, x[1:]), (torch.randn(2, 3, 4),), id="inputs-and-views-come-back"
        ),
        pytest.param(lambda x: x.expand(3, 2, 2) * 2, (torch.randn(1, 2, 2),), id="broadcast"),
        pytest.param(
            lambda x, y: x.flatten() + y,
            (torch.randn(1, 2).expand(3, 2), torch.tensor(1.5)),
            id="input-without-memory-of-its-own",
        ),
        pytest.param(
            lambda x: ((x + 1j).conj(), (x + 1j).conj().imag), (torch.randn(4),), id="conjugate"
        ),
        pytest.param(
            lambda x: x.to("cpu").double() + torch.arange(4, device="cpu"),
            (torch.randn(2, 4),),
            id="devices-in-the-graph",
        ),
        pytest.param(
            lambda d: d["a"] @ d["b"],
            ({"a": torch.randn(2, 3), "b": torch.randn(3, 1)},),
            id="dict",
        ),
        pytest.param(lambda x: x.new_zeros(0, 3), (torch.randn(1),), id="empty"),
        pytest.param(
            lambda x: torch.sort(x, stable=True).values, (torch.randn(40).double(),), id="sort"
        ),
        pytest.param(
            lambda p, x: torch.cond(p, lambda x: x.sin(), lambda x: x.cos() * 2, (x,)),
            (torch.tensor(True), torch.randn(4)),
            id="cond",
        ),
        pytest.param(
            lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(4), x),
            (torch.randn(3, 4),),
            id="scan",
        ),
        pytest.param(under_autocast, (torch.randn(2, 4), torch.randn(4, 3)), id="autocast"),
    ],
)
def test_same_as_eager(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    assert_as_eager(Lambda(function), *args)


def test_layers() -> None:
    image = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2)
    ).eval()
    assert_as_eager(image, torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last))
    text = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    assert_as_eager(text, torch.randn(2, 5, 16))


def test_random_numbers_are_those_of_eager() -> None:
    model, x = nn.Dropout(0.5), torch.ones(100, device="tpu")
    program = to_stablehlo(model, (x,), platform="cpu")
    state = program.inputs[-1]
    assert (state.kind, state.shape, state.dtype) == ("rng_state", (2,), torch.uint64)
    bound = aot.compile(model, "device", args=(x,)).bind(model)
    torch.manual_seed(5)
    drawn = [model(x), model(x)]
    torch.manual_seed(5)
    assert [y.tolist() for y in (bound(x), bound(x))] == [y.tolist() for y in drawn]


def test_written_argument() -> None:
    def add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(y) * 2

    program = aot.compile(add_in_place, "device", args=(torch.zeros(3), torch.zeros(3)))
    assert program.interface is not None
    assert [v.kind for v in program.interface.outputs] == ["user_input_mutation", "user_output"]
    bound = program.bind({})
    for device in ("cpu", "tpu"):
        x = torch.ones(3, device=device)
        assert bound(x, torch.full((3,), 2.0)).tolist() == [6, 6, 6]
        assert x.tolist() == [3, 3, 3]
    # A part of a larger tensor, in another order.
    base = torch.ones(3, 2, device="tpu")
    bound(base[:, 1], torch.full((3,), 2.0))
    assert base.tolist() == [[1, 3], [1, 3], [1, 3]]


def test_dynamic_sizes_need_arguments() -> None:
    model = Lambda(lambda x: x / x.shape[0])
    exported = export(
        model, (torch.randn(4, 3),), dynamic_shapes={"args": (({0: Dim("rows", min=2, max=64)}),)}
    )
    with pytest.raises(ValueError, match=r"\[export\] args_0 has a dynamic size .*pass the arg"):
        to_stablehlo(exported)
    assert types_of_main(to_stablehlo(exported, (torch.randn(7, 3),)))[0] == ["7x3xf32"]
    with pytest.raises(
        ValueError, match=r"expected a tensor float32\[.*, 3\] for args\[0\], got float"
    ):
        to_stablehlo(exported, (torch.randn(7, 4),))
    with pytest.raises(TypeError, match=r"of the export, args\[0\]; not expected: args\[1\]"):
        to_stablehlo(exported, (torch.randn(7, 3), 1))
    program = aot.compile(exported, "device", args=(torch.randn(5, 3),))
    assert program.bind({})(torch.full((5, 3), 10.0)).tolist() == [[2.0] * 3] * 5


def test_precision_is_an_attribute_for_a_tpu() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    assert "precision HIGHEST" in to_stablehlo(model, (x,)).text
    with tpu.precision("medium"):
        program = to_stablehlo(model, (x,))
        assert "HIGHEST" not in program.text and "reduce_precision" not in program.text
        assert "reduce_precision" in to_stablehlo(model, (x,), platform="cpu").text


def test_model_without_values() -> None:
    with torch.device("meta"):
        model, x = Counting(), torch.empty(2, 4)
        model.shift = torch.empty(3)
    text = to_stablehlo(model, (x,)).text
    assert text == to_stablehlo(Counting(), (torch.randn(2, 4),)).text
    program = aot.compile(model, "device", args=(x,))
    assert program.memory.arguments > 0
    with pytest.raises(KeyError, match="expected a constant named shift in the state"):
        program.bind(Counting())


def test_errors() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(TypeError, match=r"\[export\] expected example arguments .* with a Linear"):
        to_stablehlo(model)
    with pytest.raises(TypeError, match="expected an ExportedProgram, a module or a function, got"):
        to_stablehlo(3, (x,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected the platform 'tpu' or 'cpu', got 'gpu'"):
        to_stablehlo(model, (x,), platform="gpu")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match=r"no portable artifact.*stablehlo-translate"):
        to_stablehlo(model, (x,)).portable_artifact()


def test_operator_that_cannot_be_lowered_is_named() -> None:
    @torch.library.custom_op("torch_tpu_test_export::mystery", mutates_args=(), device_types="cpu")
    def mystery(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    mystery.register_fake(torch.empty_like)
    with pytest.raises(Exception, match="mystery") as raised:
        to_stablehlo(Lambda(lambda x: mystery(x) + 1), (torch.randn(2),))
    assert any("while lowering" in note for note in raised.value.__notes__)


def test_size_that_depends_on_values() -> None:
    with pytest.raises(RuntimeError, match="nonzero needs values") as raised:
        to_stablehlo(Lambda(lambda x: x.nonzero()), (torch.randn(2),))
    assert any("test_export.py" in note for note in raised.value.__notes__)


def test_needs_no_device() -> None:
    """Neither a plugin nor a started device: the text is all there is."""
    printed = subprocess_python.run(
        """
        import torch
        from torch_tpu import plugins
        plugins.find_plugins = lambda: ([], [])
        torch_tpu = __import__("torch_tpu")
        torch_tpu._C.set_plugin_search(plugins.find_plugins)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
        text = torch.tpu.export.to_stablehlo(model, (torch.randn(2, 4),)).text
        print("dot_general" in text, torch.tpu.is_initialized(), torch.tpu.device_count())
        """
    )
    assert printed == "True False 0\n"


def test_a_written_argument_shares_memory_with_no_other() -> None:
    def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    class Written(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return written(a, b)

    program = aot.compile(Written(), "device", args=(torch.ones(2, 2), torch.ones(2, 2)))
    both = torch.ones(8, device="tpu")
    a, b = both[:4].view(2, 2), both[4:].view(2, 2)
    program.run([a, b])  # of one storage, in different places
    compare.assert_same(both, torch.tensor([2.0] * 4 + [1.0] * 4))
    for one, other in [(a, a), (a, a.t()), (a, both[3:7].view(2, 2))]:
        with pytest.raises(
            RuntimeError, match=r"expected args\[0\] \(input 0\), .* to share no memory"
        ):
            program.run([one, other])
    compare.assert_same(both, torch.tensor([2.0] * 4 + [1.0] * 4))


# --- Graphs that were traced with tensors of the CPU ----------------------------------------------


def assert_traced_as_eager(function: Callable[..., Any], *args: Any) -> list[str]:
    """What `make_fx` recorded gives on the device what the function gives here.

    Returns the operators in it.
    """
    graph = make_fx(function)(*args)
    program = aot.compile(graph, "device", args=args)
    actual = pytree.tree_leaves(program.bind(graph)(*args))
    for one, expected in zip(actual, pytree.tree_leaves(function(*args)), strict=True):
        rough = 0.02 if expected.dtype == torch.bfloat16 else None
        torch.testing.assert_close(one.cpu(), expected, rtol=rough, atol=rough)
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "causal", "numbers", "seen"])
@pytest.mark.parametrize("heads", [4, 2], ids=["heads", "groups of heads"])
def test_gradients_of_attention(dtype: torch.dtype, mask: str, heads: int) -> None:
    query, weight = (torch.randn(2, 4, 6, 8, dtype=dtype) for _ in range(2))
    keys = 6 if mask == "causal" else 7
    key, value = (torch.randn(2, heads, keys, 8, dtype=dtype) for _ in range(2))
    bias: torch.Tensor | None = None
    if mask == "numbers":
        bias = torch.randn(6, keys, dtype=dtype)
    elif mask == "seen":
        bias = torch.rand(6, keys) > 0.3
        bias[:, 0] = True
        bias[2] = False  # sees nothing

    def attend(query: Any, key: Any, value: Any, weight: Any) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        q, k, v = leaves
        out = nn.functional.scaled_dot_product_attention(
            q, k, v, bias, is_causal=mask == "causal", scale=0.3, enable_gqa=heads != 4
        )
        return out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)

    operators = assert_traced_as_eager(attend, query, key, value, weight)
    for name in ("_for_cpu.default", "_for_cpu_backward.default"):
        assert f"aten._scaled_dot_product_flash_attention{name}" in operators


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("how", [{"size": (13, 5)}, {"scale_factor": 1.7}])
def test_interpolation_stays_whole(mode: str, how: dict[str, Any]) -> None:
    """PyTorch would take it apart, and round bytes in another way."""

    def resize(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, mode=mode, **how)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(resize(x).square().sum(), x)[0]

    image = torch.randint(0, 256, (2, 3, 7, 9), dtype=torch.uint8)
    operator = f"aten.upsample_{mode}2d.default"
    assert operator in assert_traced_as_eager(resize, image)
    assert operator in assert_traced_as_eager(gradient, image.float() / 255)
    text = to_stablehlo(make_fx(resize)(image), image).text
    assert "gather" not in text
    # What other graphs of the CPU's tensors are like has not changed.
    kernels = torch.ops.aten.upsample_bilinear2d.default.py_kernels
    assert torch._C.DispatchKey.AutogradCPU not in kernels
