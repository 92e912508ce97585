"""Wrong calls raise what they raise on the CPU, and the process goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import subprocess_python
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Call = Callable[[str], object]


def ones(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device=device)


def overlapping(device: str) -> torch.Tensor:
    return torch.zeros(3, device=device).expand(4, 3)


# Calls that are wrong on any device.
WRONG: dict[str, Call] = {
    "add shapes": lambda d: ones(2, 3, device=d) + ones(4, device=d),
    "mul shapes": lambda d: ones(2, 3, device=d).mul(ones(2, device=d)),
    "matmul shapes": lambda d: ones(2, 3, device=d) @ ones(4, 5, device=d),
    "mm dims": lambda d: torch.mm(ones(2, device=d), ones(2, 2, device=d)),
    "bmm shapes": lambda d: torch.bmm(ones(2, 3, 4, device=d), ones(3, 4, 5, device=d)),
    "addmm shapes": lambda d: torch.addmm(
        ones(3, device=d), ones(2, 3, device=d), ones(3, 4, device=d)
    ),
    "linear shapes": lambda d: F.linear(ones(2, 3, device=d), ones(4, 5, device=d)),
    "matmul dtypes": lambda d: ones(2, 2, device=d) @ ones(2, 2, device=d, dtype=torch.float64),
    "linear dtypes": lambda d: F.linear(
        ones(2, 2, device=d), ones(2, 2, device=d, dtype=torch.bfloat16)
    ),
    "conv channels": lambda d: F.conv2d(ones(1, 3, 8, 8, device=d), ones(4, 2, 3, 3, device=d)),
    "conv kernel too large": lambda d: F.conv2d(
        ones(1, 1, 2, 2, device=d), ones(1, 1, 3, 3, device=d)
    ),
    "max_pool output": lambda d: F.max_pool2d(ones(1, 1, 2, 2, device=d), 3),
    "layer_norm shape": lambda d: F.layer_norm(ones(2, 3, device=d), (4,)),
    "view_copy of nothing": lambda d: torch.view_copy(ones(0, 5, device=d), (0, -1)),
    "view_copy sizes": lambda d: torch.view_copy(ones(2, 3, device=d), (4, -1)),
    "reshape of nothing": lambda d: ones(0, 5, device=d).reshape(0, -1),
    "sum dim": lambda d: ones(2, 3, device=d).sum(2),
    "sum negative dim": lambda d: ones(2, 3, device=d).sum(-3),
    "sum dim twice": lambda d: ones(2, 3, device=d).sum((0, 0)),
    "softmax dim": lambda d: ones(2, 3, device=d).softmax(5),
    "argmax of nothing": lambda d: ones(0, device=d).argmax(),
    "max of nothing": lambda d: ones(0, device=d).max(),
    "select index": lambda d: ones(2, 3, device=d)[5],
    "select dim": lambda d: ones(2, 3, device=d).select(2, 0),
    "too many indices": lambda d: ones(2, device=d)[0, 0],
    "narrow": lambda d: ones(4, device=d).narrow(0, 3, 2),
    "transpose dim": lambda d: ones(2, 3, device=d).transpose(0, 2),
    "permute dims": lambda d: ones(2, 3, device=d).permute(0, 0),
    "view size": lambda d: ones(2, 3, device=d).view(4),
    "view of strides": lambda d: ones(2, 3, device=d).t().view(6),
    "reshape size": lambda d: ones(2, 3, device=d).reshape(4, -1),
    "expand size": lambda d: ones(2, 3, device=d).expand(4, 3),
    "cat shapes": lambda d: torch.cat([ones(2, 3, device=d), ones(2, 4, device=d)]),
    "cat of nothing": lambda d: torch.cat([]),
    "stack shapes": lambda d: torch.stack([ones(2, device=d), ones(3, device=d)]),
    "split sizes": lambda d: ones(5, device=d).split([2, 2]),
    "gather dtype": lambda d: ones(2, 2, device=d).gather(0, ones(1, 2, device=d)),
    "gather shape": lambda d: ones(2, 2, device=d).gather(
        0, ones(1, 3, device=d, dtype=torch.int64)
    ),
    "index_select dtype": lambda d: ones(2, 2, device=d).index_select(0, ones(1, device=d)),
    "index dtype": lambda d: ones(3, device=d)[ones(2, device=d)],
    "index shapes": lambda d: ones(3, 3, device=d)[
        ones(2, device=d, dtype=torch.int64), ones(3, device=d, dtype=torch.int64)
    ],
    "mask shape": lambda d: ones(3, device=d)[ones(4, device=d, dtype=torch.bool)],
    "scatter dtype": lambda d: ones(3, device=d).scatter(
        0, ones(1, device=d, dtype=torch.int64), ones(1, device=d, dtype=torch.float64)
    ),
    "copy shape": lambda d: ones(3, device=d).copy_(ones(4, device=d)),
    "masked_fill dtype": lambda d: ones(3, device=d).masked_fill(ones(3, device=d), 0),
    "where shapes": lambda d: torch.where(
        ones(3, device=d, dtype=torch.bool), ones(2, device=d), ones(3, device=d)
    ),
    "in-place shape": lambda d: ones(3, device=d).add_(ones(2, 3, device=d)),
    "in-place dtype": lambda d: ones(3, device=d, dtype=torch.int64).add_(ones(3, device=d)),
    "in-place bool": lambda d: ones(3, device=d, dtype=torch.bool).add_(1.5),
    "out dtype": lambda d: torch.add(
        ones(3, device=d), 1, out=ones(3, device=d, dtype=torch.int64)
    ),
    "in-place on overlapping": lambda d: overlapping(d).add_(1),
    "copy into overlapping": lambda d: overlapping(d).copy_(ones(4, 3, device=d)),
    "in-place on partial overlap": lambda d: (lambda x: x[1:].add_(x[:-1]))(ones(4, device=d)),
    "out overlaps input": lambda d: (lambda x: torch.mul(x[1:], 2, out=x[:-1]))(ones(4, device=d)),
    "bool minus": lambda d: ones(3, device=d, dtype=torch.bool) - ones(3, device=d).bool(),
    "negative of bool": lambda d: -ones(3, device=d, dtype=torch.bool),
    "bitwise of float": lambda d: ones(3, device=d) & ones(3, device=d),
    "integer power": lambda d: ones(3, device=d, dtype=torch.int64) ** -1,
    "mean of integers": lambda d: ones(3, device=d, dtype=torch.int64).mean(),
    "item of many": lambda d: ones(3, device=d).item(),
    "bool of many": lambda d: bool(ones(3, device=d)),
    "float of none": lambda d: float(ones(0, device=d)),
    "negative size": lambda d: torch.empty(-1, device=d),
    "arange step": lambda d: torch.arange(3, 0, 1, device=d),
    "randperm": lambda d: torch.randperm(-1, device=d),
    "randint": lambda d: torch.randint(3, 3, (2,), device=d),
    "multinomial": lambda d: ones(3, device=d).multinomial(4),
    "dropout": lambda d: F.dropout(ones(3, device=d), 1.5),
    "cross_entropy of int32": lambda d: F.cross_entropy(
        ones(2, 3, device=d), ones(2, device=d, dtype=torch.int32)
    ),
    "cross_entropy of bytes, in two dimensions": lambda d: F.cross_entropy(
        ones(1, 3, 2, 2, device=d), ones(1, 2, 2, device=d, dtype=torch.uint8)
    ),
    "cross_entropy with other weights": lambda d: F.cross_entropy(
        ones(2, 3, device=d),
        ones(2, device=d, dtype=torch.int64),
        weight=ones(3, device=d, dtype=torch.float64),
    ),
    "cross_entropy shapes": lambda d: F.cross_entropy(
        ones(3, 4, device=d), ones(2, device=d, dtype=torch.int64)
    ),
    "multi_margin_loss of a float target": lambda d: F.multi_margin_loss(
        ones(5, 3, device=d), torch.zeros(5, device=d)
    ),
    "multi_margin_loss of a target of bytes": lambda d: F.multi_margin_loss(
        ones(5, 3, device=d), torch.zeros(5, device=d, dtype=torch.uint8)
    ),
    "multi_margin_loss without classes": lambda d: F.multi_margin_loss(
        ones(5, 0, device=d), torch.zeros(5, device=d, dtype=torch.int64)
    ),
    "multi_margin_loss of a cube": lambda d: F.multi_margin_loss(
        ones(5, 3, 2, device=d), torch.zeros(5, device=d, dtype=torch.int64)
    ),
    "multi_margin_loss of other targets": lambda d: F.multi_margin_loss(
        ones(5, 3, device=d), torch.zeros(4, device=d, dtype=torch.int64)
    ),
    "multi_margin_loss of other weights": lambda d: F.multi_margin_loss(
        ones(5, 3, device=d), torch.zeros(5, device=d, dtype=torch.int64), weight=ones(4, device=d)
    ),
    "multilabel_margin_loss of int32": lambda d: F.multilabel_margin_loss(
        ones(5, 3, device=d), torch.zeros(5, 3, device=d, dtype=torch.int32)
    ),
    "multilabel_margin_loss without classes": lambda d: F.multilabel_margin_loss(
        ones(5, 0, device=d), torch.zeros(5, 0, device=d, dtype=torch.int64)
    ),
    "multilabel_margin_loss of nothing": lambda d: F.multilabel_margin_loss(
        ones(0, device=d), torch.zeros(0, device=d, dtype=torch.int64)
    ),
    "multilabel_margin_loss of other targets": lambda d: F.multilabel_margin_loss(
        ones(5, 3, device=d), torch.zeros(5, 4, device=d, dtype=torch.int64)
    ),
    "mse of shapes": lambda d: F.mse_loss(ones(3, device=d), ones(4, 4, device=d)),
    "embedding dtype": lambda d: F.embedding(ones(2, device=d), ones(3, 3, device=d)),
    "cumsum dim": lambda d: ones(2, device=d).cumsum(1),
    "topk k": lambda d: ones(2, device=d).topk(3),
    "sort dim": lambda d: ones(2, device=d).sort(2),
    "flip dim": lambda d: ones(2, device=d).flip(1),
    "unfold": lambda d: ones(2, device=d).unfold(0, 3, 1),
    "diagonal dims": lambda d: ones(2, 2, device=d).diagonal(0, 1, 1),
    "squeeze dim": lambda d: ones(2, 2, device=d).squeeze(2),
    "einsum": lambda d: torch.einsum("ij,jk", ones(2, 3, device=d), ones(4, 5, device=d)),
    "pad": lambda d: F.pad(ones(2, device=d), (1, 1), mode="reflect"),
    "interpolate": lambda d: F.interpolate(ones(1, 1, 2, 2, device=d), size=(0, 2)),
    "attention": lambda d: F.scaled_dot_product_attention(
        ones(1, 2, 4, device=d), ones(1, 2, 5, device=d), ones(1, 2, 4, device=d)
    ),
    "set_ stride": lambda d: ones(2, device=d).set_(
        ones(4, device=d).untyped_storage(), 0, (2, 2), (1,)
    ),
    "as_strided": lambda d: ones(4, device=d).as_strided((2,), (1, 1)),
    "leaf in place": lambda d: ones(2, device=d).requires_grad_().add_(1),
    "backward of many": lambda d: ones(2, device=d).requires_grad_().mul(2).backward(),
    "grad of integers": lambda d: ones(2, device=d, dtype=torch.int64).requires_grad_(),
    "numpy with grad": lambda d: ones(2, device=d).requires_grad_().cpu().numpy(),
    "load_state_dict": lambda d: nn.Linear(2, 3).to(d).load_state_dict({}),
    "cholesky": lambda d: torch.linalg.cholesky(-torch.eye(3, device=d)),
    "inverse": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
}


@pytest.fixture(autouse=True)
def the_device_goes_on() -> Iterator[None]:
    yield
    x = torch.arange(6.0, device="tpu")
    assert (x.view(2, 3) @ x.view(3, 2)).tolist() == [[10.0, 13.0], [28.0, 40.0]]
    torch.accelerator.synchronize()


def failure(call: Call, device: str) -> BaseException | None:
    try:
        call(device)
    except BaseException as error:
        return error
    return None


def essence(error: BaseException) -> str:
    """The first line without device names, backend names and addresses."""
    text = str(error).split("\n")[0].lower()
    text = re.sub(r"tpu(:\d+)?|cpu|privateuse1|privateuseone", "<device>", text)
    return re.sub(r"^\S+: ", "", text).strip()


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_wrong_calls(call: Call) -> None:
    expected, actual = failure(call, "cpu"), failure(call, "tpu")
    assert expected is not None, "the CPU accepts it"
    assert actual is not None, f"accepted; the CPU says {expected!r}"
    assert type(actual) is type(expected), f"{actual!r}, expected {expected!r}"
    assert essence(actual) == essence(expected)


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda a, b: a + b,
    "add the other way": lambda a, b: b + a,
    "mul_": lambda a, b: a.mul_(b),
    "matmul": lambda a, b: a @ b,
    "matmul the other way": lambda a, b: b @ a,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([b, a]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "linear": lambda a, b: F.linear(a, b),
    "module": lambda a, b: nn.Linear(2, 2)(a),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "equal": lambda a, b: torch.equal(a, b),
    "embedding": lambda a, b: F.embedding(a.long(), b),
    "mse_loss": lambda a, b: F.mse_loss(a, b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "index_select": lambda a, b: b.index_select(0, a.long()[0]),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.0),
    "foreach": lambda a, b: torch._foreach_add_([a], [b]),
}


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED.keys())
def test_tensors_of_two_devices(
    call: Callable[[torch.Tensor, torch.Tensor], object],
) -> None:
    a, b = torch.ones(2, 2, device="tpu"), torch.ones(2, 2)
    with pytest.raises(RuntimeError) as raised:
        call(a, b)
    text = str(raised.value)
    assert "same device" in text and "tpu:0" in text and "cpu" in text, text
    assert a.tolist() == [[1.0, 1.0], [1.0, 1.0]] and b.tolist() == a.tolist()


def test_scalars_of_the_cpu_mix() -> None:
    a = torch.ones(2, device="tpu")
    assert (a + torch.tensor(2.0)).tolist() == [3.0, 3.0]
    assert (torch.tensor(2) * a).tolist() == [2.0, 2.0]
    assert torch.where(a > 0, a, torch.tensor(0.0)).tolist() == [1.0, 1.0]
    assert torch.ones(3)[torch.tensor(1)].item() == 1
    a[0] = torch.tensor(5.0)
    assert a.tolist() == [5.0, 1.0]


def test_numpy() -> None:
    x = torch.ones(2, device="tpu")
    with pytest.raises(TypeError, match=r"can't convert tpu:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match=r"can't convert tpu:0 device type tensor to numpy"):
        x.__array__()
    assert x.cpu().numpy().tolist() == [1.0, 1.0]


def test_dtypes_the_device_does_not_have() -> None:
    with pytest.raises(NotImplementedError, match="the tpu device has no dtype ComplexHalf"):
        torch.empty(2, dtype=torch.complex32, device="tpu")
    with pytest.raises(NotImplementedError):
        torch.empty(2, dtype=torch.qint8, device="tpu")


def test_an_operator_that_fails_leaves_its_operands_alone() -> None:
    x = torch.ones(2, 2, device="tpu")
    for _ in range(3):
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(3, device="tpu"))
        with pytest.raises(RuntimeError):
            torch.mm(x, torch.ones(3, 3, device="tpu"), out=x)
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_errors_in_the_backward_pass() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x * 1

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad @ torch.ones(7, 7, device="tpu")

    x = torch.ones(2, 2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Fails.apply(x).sum().backward()
    assert x.grad is None


def test_errors_in_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def wrong(size: int) -> str:
        try:
            torch.ones(2, device="tpu") + torch.ones(size, device="tpu")
        except RuntimeError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        for text in pool.map(wrong, range(3, 11)):
            assert "must match the size" in text


def test_an_unsupported_operator_is_named() -> None:
    out = subprocess_python.run(
        """
        import torch
        library = torch.library.Library("tests", "DEF")
        library.define("nothing(Tensor x) -> Tensor")
        try:
            torch.ops.tests.nothing(torch.ones(1, device="tpu"))
        except NotImplementedError as error:
            print("tests::nothing" in str(error))
        print(torch.ones(1, device="tpu").item())
        """
    )
    assert out == "True\n1.0\n"
