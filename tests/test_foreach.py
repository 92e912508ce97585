"""Lists of tensors in one program: `_foreach_*`, optimizers and the gradient scaler."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch
from both_devices import check, data

from torch_tpu.tpu import EagerMode

pytestmark = pytest.mark.usefixtures("no_fallback")

SHAPES = [(3, 4), (5,), (), (2, 0)]
Tensors = list[torch.Tensor]


def tensors(dtype: torch.dtype = torch.float32, positive: bool = False) -> Tensors:
    """One tensor of each shape."""
    values = [data(*shape, dtype=dtype) for shape in SHAPES]
    return [v.abs() * 0.3 + 0.1 for v in values] if positive else values


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


UNARY = words(
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "neg round rsqrt sign sigmoid sin sinh reciprocal sqrt tan tanh trunc"
)


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    def run(*x: torch.Tensor) -> Tensors:
        changed = [v.clone() for v in x]
        getattr(torch, f"_foreach_{op}_")(changed)
        return [*getattr(torch, f"_foreach_{op}")(list(x)), *changed]

    check(run, *tensors(positive=True), backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("op", words("add sub mul div maximum minimum clamp_min clamp_max"))
def test_binary(op: str, dtype: torch.dtype) -> None:
    def run(x: Tensors, y: Tensors) -> Tensors:
        function = getattr(torch, f"_foreach_{op}")
        results = [*function(x, y), *function(x, 2), *function(x, [1, 2, 3, 4])]
        if op in ("add", "sub"):
            results += function(x, y, alpha=2)
        if op in ("add", "mul", "div"):
            results += function(x, y[2])
        if dtype.is_floating_point:
            in_place = [v.clone() for v in x]
            getattr(torch, f"_foreach_{op}_")(in_place, 1.7)
            results += in_place
        return results

    second = [torch.where(v == 0, 1, v) for v in tensors(dtype)]
    check(run, tensors(dtype), second, backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["addcmul", "addcdiv"])
def test_ternary(op: str, dtype: torch.dtype) -> None:
    def run(x: Tensors, y: Tensors, z: Tensors) -> Tensors:
        function = getattr(torch, f"_foreach_{op}")
        changed = [v.clone() for v in x]
        getattr(torch, f"_foreach_{op}_")(changed, y, z, -0.3)
        lists = function(x, y, z, [1.0, 2.0, 0.3, 0.4])
        return [*function(x, y, z), *lists, *changed]

    check(run, tensors(dtype), tensors(dtype), tensors(dtype, True), backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_others(dtype: torch.dtype) -> None:
    def run(x: Tensors, y: Tensors) -> Tensors:
        copies = [torch.empty_like(v, dtype=torch.float32) for v in x]
        torch._foreach_copy_(copies, x)
        zeros = [v.clone() for v in x]
        torch._foreach_zero_(zeros)
        return [
            *copies,
            *zeros,
            *torch._foreach_lerp(x, y, 0.3),
            *torch._foreach_lerp(x, y, y),
            *torch._foreach_lerp(x, y, [0.1, 0.6, 0.7, 1.0]),
            *torch._foreach_pow(y, 2),
            *torch._foreach_pow(y, x),
            *torch._foreach_pow(y, [1, 2, 3.5, 4.0]),
            *torch._foreach_pow(2.0, x),
            *torch._foreach_norm(x),
            *torch._foreach_norm(x, 1),
            *torch._foreach_norm(x[:3], float("inf")),
            *torch._foreach_max(x[:3]),
        ]

    check(run, tensors(dtype), tensors(dtype, True), backward=False)


def test_numbers_do_not_compile_again() -> None:
    x = [v.to(compare.DEVICE) for v in tensors()]
    torch._foreach_mul_(x, 1.5)
    before = compare.dispatch_stats()
    torch._foreach_mul_(x, 1.25)
    after = compare.dispatch_stats()
    assert all(after[key] == before[key] for key in ("compiles", "loads"))


Optimizer = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "adam decay": (torch.optim.Adam, {"weight_decay": 0.1, "lr": 0.01}),
    "adam amsgrad": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw amsgrad": (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.3}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd damped": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "sgd nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {}),
}
FUSED = [name for name in OPTIMIZERS if name.split()[0] in ("adam", "adamw", "sgd", "adagrad")]


def train(
    name: str, device: str, dtype: torch.dtype, gradients: list[Tensors], **extra: Any
) -> Tensors:
    """Parameters and optimizer state after one step with each list of gradients."""
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES[:3]]
    parameters = [torch.nn.Parameter(p.to(device)) for p in start]
    make, options = OPTIMIZERS[name]
    optimizer = make(parameters, **options, **extra)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(device)
        optimizer.step()
    results = [p.detach() for p in parameters]
    for state in optimizer.state.values():
        results += [v for v in state.values() if isinstance(v, torch.Tensor) and v.dim()]
    return results


def compare_training(name: str, dtype: torch.dtype, **extra: Any) -> None:
    """Trains on both devices with the same gradients."""
    gradients = [[data(*shape, dtype=dtype) for shape in SHAPES[:3]] for _ in range(3)]
    actual = train(name, compare.DEVICE, dtype, gradients, **extra)
    expected = train(name, "cpu", dtype, gradients, **extra)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        compare.assert_same(got, wanted, rtol=tolerance, atol=tolerance, what=f"value {index}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_foreach_optimizer(name: str) -> None:
    compare_training(name, torch.float32, foreach=True)


@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizer(name: str) -> None:
    compare_training(name, torch.float32, fused=True)


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adamw(dtype: torch.dtype, way: dict[str, bool]) -> None:
    compare_training("adamw", dtype, **way)


def scaled_training(device: str, **options: Any) -> Tensors:
    """Three steps with a gradient scaler; the second overflows."""
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(3, 4, generator=generator).to(device))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, **options)
    scaler = torch.amp.GradScaler(device, init_scale=16.0, growth_interval=1)
    scales = []
    for step in range(3):
        optimizer.zero_grad()
        factor = float("inf") if step == 1 else 0.5 + step
        scaler.scale((parameter * parameter).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [32.0, 16.0, 32.0]
    return [parameter.detach(), optimizer.state[parameter]["exp_avg_sq"]]


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_gradient_scaler(way: dict[str, bool]) -> None:
    actual, expected = scaled_training(compare.DEVICE, **way), scaled_training("cpu", **way)
    for got, wanted in zip(actual, expected, strict=True):
        compare.assert_same(got, wanted, rtol=1e-5, atol=1e-6)


def test_clip_grad_norm() -> None:
    def run(*x: torch.Tensor) -> Tensors:
        parameters = [torch.nn.Parameter(v.detach()) for v in x]
        for p, v in zip(parameters, x, strict=True):
            p.grad = v.detach().clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
        torch.nn.utils.clip_grad_value_(parameters, 0.1, foreach=True)
        return [norm, *(p.grad for p in parameters if p.grad is not None)]

    check(run, *tensors()[:3], backward=False)


# --- Entries that share memory -----------------------------------------------------------------
# The CPU works on one entry after the other: an entry sees what was written before it.

MODES = {
    "strict": EagerMode.DEFER_NEVER,
    "debug": EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
    "deferred": EagerMode.DEFER_AND_FUSE,
}
# Of x and y, which have 12 elements, and s, which has one.
Change = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
SHARING: dict[str, Change] = {
    "add": lambda x, y, s: torch._foreach_add_([x, x], [y, y], alpha=0.5),
    "add a number": lambda x, y, s: torch._foreach_add_([x, y, x, x], 1.25),
    "sub what was written": lambda x, y, s: torch._foreach_sub_([x, y, x], [y, x, y]),
    "mul numbers": lambda x, y, s: torch._foreach_mul_([x, y, x], [2.0, 3.0, 5.0]),
    "mul by an entry": lambda x, y, s: torch._foreach_mul_([x, s, y], s),
    "add an entry": lambda x, y, s: torch._foreach_add_([x, s, y], s),
    "div": lambda x, y, s: torch._foreach_div_([x, y, x], [y, x, y]),
    "maximum": lambda x, y, s: torch._foreach_maximum_([x, y, y], [y, x, x]),
    "clamp": lambda x, y, s: torch._foreach_clamp_max_([x, y, x], [y, x, y]),
    "pow": lambda x, y, s: torch._foreach_pow_([x, x, y], 2),
    "unary": lambda x, y, s: torch._foreach_sqrt_([x, y, x]),
    "overlap": lambda x, y, s: torch._foreach_mul_([x[:8], y[2:], x[4:]], [2.0, 3.0, 5.0]),
    "interleaved": lambda x, y, s: torch._foreach_add_([x[::2], x[1::2]], [x[1::2], x[::2]]),
    "apart": lambda x, y, s: torch._foreach_mul_([x[:6], x[6:]], [x[6:], y[:6]]),
    "rows": lambda x, y, s: torch._foreach_exp_([x.view(3, 4)[0], x.view(3, 4)[:, 1]]),
    "addcdiv": lambda x, y, s: torch._foreach_addcdiv_([x, x, y], [y, x, x], [y, y, x], 0.5),
    "addcdiv numbers": lambda x, y, s: torch._foreach_addcdiv_(
        [x, x, y], [y, x, x], [y, y, x], [0.5, 0.25, 0.3]
    ),
    "addcmul": lambda x, y, s: torch._foreach_addcmul_([x, y, x], [y, x, x], [y, y, x]),
    "lerp weights": lambda x, y, s: torch._foreach_lerp_([x, x, y], [y, y, x], [0.3, 0.7, 0.9]),
    "lerp tensors": lambda x, y, s: torch._foreach_lerp_([x, x, y], [y, y, x], [y, x, x]),
    "copy": lambda x, y, s: torch._foreach_copy_([x, y, s], [y, x, x[0]]),
    "copy halves": lambda x, y, s: torch._foreach_copy_([x[:6], x[6:]], [x[6:], x[:6]]),
    "shift": lambda x, y, s: torch._foreach_copy_([x[:4], x[4:8], x[8:]], [x[4:8], x[8:], y[:4]]),
    "zero": lambda x, y, s: torch._foreach_zero_([x[:6], x[3:9], y[1:2]]),
    "no elements": lambda x, y, s: torch._foreach_add_([x[:0], x, x[12:]], 1.0),
}
# What torch.compile cannot take: Dynamo has its own lerp, AOTAutograd no fused operators.
EAGER_ONLY: dict[str, Change] = {
    "lerp": lambda x, y, s: torch._foreach_lerp_([x, x, y], [y, y, x], 0.3),
    "fused adam": lambda x, y, s: torch._fused_adam_(
        [x, x, y],
        [y, x, y],
        [x * 0.1, y * 0.1, x * 0.3],
        [y * 0.3] * 3,
        [],
        [s + 2] * 3,
        lr=0.1,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.1,
        eps=1e-6,
        amsgrad=False,
        maximize=False,
    ),
    "fused sgd": lambda x, y, s: torch._fused_sgd_(
        [x, x],
        [y, y],
        [s.expand(12).clone()] * 2,
        weight_decay=0.1,
        momentum=0.9,
        lr=0.1,
        dampening=0.2,
        nesterov=True,
        maximize=False,
        is_first_step=False,
    ),
    "unscale": lambda x, y, s: torch._amp_foreach_non_finite_check_and_unscale_(
        [x, y, x], s, torch.full((1,), 0.25, device=x.device)
    ),
    "unscale to infinity": lambda x, y, s: torch._amp_foreach_non_finite_check_and_unscale_(
        [x, x], s.zero_(), torch.full((1,), 1e30, device=x.device)
    ),
    "split": lambda x, y, s: torch.split_with_sizes_copy(x, [6, 6], out=[x[6:], x[:6]]),
    "unbind": lambda x, y, s: torch.unbind_copy(x.view(2, 6), out=[x[6:], x[:6]]),
    "out": lambda x, y, s: torch.ops.aten._foreach_add.List_out([x, y], [y, x], out=[x, y]),
    "long": lambda x, y, s: torch._foreach_add_(
        [*x.split(1), *y.split(1), x] * 5, [*y.split(1), *x.split(1), y] * 5
    ),
}


def changed(change: Change, device: str, dtype: torch.dtype = torch.float32) -> Tensors:
    x, y = (torch.linspace(low, 2, 12, dtype=dtype).to(device) for low in (0.5, 1.25))
    s = torch.full((1,), 1.5, dtype=dtype).to(device)[0]
    change(x, y, s)
    return [x, y, s]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*SHARING, *EAGER_ONLY])
def test_entries_that_share_memory(name: str, mode: str) -> None:
    change = (SHARING | EAGER_ONLY)[name]
    with torch.tpu.set_eager_mode(MODES[mode]):  # type: ignore[attr-defined]
        actual = changed(change, compare.DEVICE)
    for got, wanted in zip(actual, changed(change, "cpu"), strict=True):
        compare.assert_same(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_entries_of_other_types_that_share_memory(dtype: torch.dtype) -> None:
    for name in ("add", "mul numbers", "overlap", "copy", "sub what was written"):
        if dtype is torch.int32 and name in ("add", "mul numbers", "overlap"):
            continue  # the numbers are fractions
        expected = changed(SHARING[name], "cpu", dtype)
        for got, wanted in zip(
            changed(SHARING[name], compare.DEVICE, dtype), expected, strict=True
        ):
            compare.assert_same(got, wanted, what=name)


def test_entries_of_unwritten_memory() -> None:
    def run(device: str, x: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(12, device=device)
        torch._foreach_copy_([empty, empty[3:6], empty[4:]], [x, x[:3], x[:8]])
        torch._foreach_add_([empty, empty], [x, empty])
        return empty

    x = data(12)
    compare.assert_same(run(compare.DEVICE, x.to(compare.DEVICE)), run("cpu", x))


@pytest.mark.parametrize("name", SHARING)
def test_compiled_entries_that_share_memory(name: str) -> None:
    change = SHARING[name]

    def run(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        before = x * y
        change(x, y, s)
        return before + x + y

    torch.compiler.reset()
    results = []
    for device, function in ((compare.DEVICE, torch.compile(run, fullgraph=True)), ("cpu", run)):
        returned: Tensors = []
        written = changed(lambda *a, f=function, r=returned: r.append(f(*a)), device)
        results.append([*returned, *written])
    for got, wanted in zip(*results, strict=True):
        compare.assert_same(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_a_compiled_call_returns() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        written: Any = torch._foreach_add_  # as it is typed, it returns nothing
        first, second = written([x, x], [y, y])
        return first * 1, second + 1

    torch.compiler.reset()
    x, y = data(3), data(3)
    compiled = torch.compile(run, fullgraph=True)
    actual = compiled(x.to(compare.DEVICE), y.to(compare.DEVICE))
    for got, wanted in zip(actual, (x + y + y, x + y + y + 1), strict=True):
        compare.assert_same(got, wanted)


@pytest.mark.parametrize("name", [*SHARING, *EAGER_ONLY])
def test_entries_that_share_memory_in_a_step(name: str) -> None:
    change = (SHARING | EAGER_ONLY)[name]
    step = torch.tpu.compile_step(change)  # type: ignore[attr-defined]
    for got, wanted in zip(changed(step, compare.DEVICE), changed(change, "cpu"), strict=True):
        compare.assert_same(got, wanted, rtol=1e-5, atol=1e-6)


def test_one_program_for_entries_that_share_memory() -> None:
    x, y = data(12).to(compare.DEVICE), data(12).to(compare.DEVICE)
    counts = []
    for factor in (1.5, 2.5, 3.5):
        before = compare.dispatch_stats()
        torch._foreach_mul_([x, y, x[:6]], factor)
        after = compare.dispatch_stats()
        counts.append([after[key] - before[key] for key in ("ops", "programs")])
        compiled = [after[key] - before[key] for key in ("compiles", "loads")]
    assert counts == [[1, 1]] * 3
    assert compiled == [0, 0]


REFUSED: dict[str, Change] = {
    "transposed": lambda x, y, s: torch._foreach_add_(
        [y, x[:9].view(3, 3)], [y, x[:9].view(3, 3).t()]
    ),
    "shifted": lambda x, y, s: torch._foreach_copy_([x[1:]], [x[:-1]]),
    "one place": lambda x, y, s: torch._foreach_add_([s.expand(12)], [x]),
    "split": lambda x, y, s: torch.split_with_sizes_copy(x, [6, 6], out=[x[1:7], y[:6]]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_entries_that_are_refused(name: str) -> None:
    messages = []
    for device in (compare.DEVICE, "cpu"):
        with pytest.raises(RuntimeError) as raised:
            changed(REFUSED[name], device)
        messages.append(str(raised.value).split("\n")[0])
    assert messages[0] == messages[1]


def test_numbers_of_the_entries_in_a_tensor() -> None:
    def run(x: Tensors, y: Tensors, z: Tensors) -> Tensors:
        numbers = torch.tensor([0.5, -2.0, 3.0, 0.25])
        torch._foreach_addcmul_(y, x, z, numbers)
        torch._foreach_addcdiv_(y, x, z, numbers.to(x[0].device))
        return [*torch._foreach_addcdiv(x, y, z, numbers), *y]

    check(run, tensors(), tensors(), tensors(positive=True), backward=False)
    x = [torch.ones(2, device=compare.DEVICE)]
    with pytest.raises(RuntimeError, match="Expected length of scalars to match"):
        torch._foreach_addcdiv_(x, x, x, torch.ones(2))


WAYS = [(name, "foreach") for name in OPTIMIZERS if " " not in name]
WAYS += [(name, "fused") for name in FUSED if " " not in name]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_parameter_twice(name: str, way: str) -> None:
    make, options = OPTIMIZERS[name]

    def run(device: str, gradients: Tensors) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.linspace(0.5, 2, 5).to(device))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it says what is tested here
            optimizer = make([parameter, parameter], **options, **{way: True})
        for gradient in gradients:
            parameter.grad = gradient.to(device)
            optimizer.step()
        return parameter.detach()

    gradients = [data(5) for _ in range(3)]
    compare.assert_same(run(compare.DEVICE, gradients), run("cpu", gradients), rtol=1e-5, atol=1e-6)
