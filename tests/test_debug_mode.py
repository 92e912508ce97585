"""Debug mode: what the CPU says about values, and who made the first NaN."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from torch_tpu import _C, tpu

DEBUG = tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING

# Makes tensors on the device under test.
Make = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def debug_mode() -> Iterator[None]:
    """Every test here is in debug mode."""
    with tpu.set_eager_mode(DEBUG):
        yield


def _zeros(t: Make) -> torch.Tensor:
    return t([0.0, 0, 0])


def _table(t: Make) -> torch.Tensor:
    return t([[1.0, 2], [3, 4], [5, 6]])


def _scores(t: Make) -> torch.Tensor:
    return t([[0.5, -0.5, 1.0], [0.1, 0.2, 0.3]])


def _out(t: Make) -> torch.Tensor:
    return t([0.0])


# What the CPU refuses because of a value.
REFUSED: dict[str, Callable[[Make], object]] = {
    "gather": lambda t: _table(t).gather(1, t([[2], [0], [0]])),
    "gather, negative": lambda t: _table(t).gather(0, t([[-1, 0]])),
    "gather out=": lambda t: torch.gather(_zeros(t), 0, t([9]), out=_out(t)),
    "gather, expanded index": lambda t: _table(t).gather(0, t([[7]]).expand(1, 2)),
    "scatter value": lambda t: _table(t).scatter(0, t([[3, 0]]), 1.0),
    "scatter_": lambda t: _table(t).scatter_(1, t([[0, 2]]), _table(t)),
    "scatter reduce": lambda t: _table(t).scatter(0, t([[3, 0]]), _table(t), reduce="add"),
    "scatter_add": lambda t: _table(t).scatter_add(0, t([[-4, 0]]), _table(t)),
    "scatter_reduce": lambda t: _table(t).scatter_reduce(0, t([[3, 0]]), _table(t), "amax"),
    "index": lambda t: _table(t)[t([0, 3])],
    "index, negative": lambda t: _table(t)[t([-4])],
    "index, two": lambda t: _table(t)[t([0]), t([2])],
    "index, second": lambda t: _table(t)[:, t([0, 2])],
    "index, after a mask": lambda t: _table(t)[t([True, False, True]), t([0, 5])],
    "index with a 0-d tensor": lambda t: _table(t)[t(5)],
    "index_put": lambda t: _table(t).index_put((t([3]),), t([1.0])),
    "index_put_ by =": lambda t: _table(t).__setitem__(t([0, -4]), 1.0),
    "index_put_ accumulate": lambda t: _table(t).index_put_((t([3]),), t([1.0]), accumulate=True),
    "index_select": lambda t: _table(t).index_select(0, t([3])),
    "index_select, negative": lambda t: _table(t).index_select(1, t([-1])),
    "index_add": lambda t: _zeros(t).index_add(0, t([7]), t([1.0])),
    "index_copy_": lambda t: _zeros(t).index_copy_(0, t([7]), t([1.0])),
    "index_fill": lambda t: _zeros(t).index_fill(0, t([7]), 1.0),
    "index_reduce": lambda t: _zeros(t).index_reduce(0, t([7]), t([1.0]), "prod"),
    "take": lambda t: _table(t).take(t([6])),
    "put_": lambda t: _table(t).put_(t([-7]), t([1.0])),
    "embedding": lambda t: F.embedding(t([[0, 3]]), _table(t)),
    "embedding, negative": lambda t: F.embedding(t([-1]), _table(t)),
    "embedding max_norm": lambda t: F.embedding(t([3]), _table(t), max_norm=1.0),
    "embedding_bag": lambda t: F.embedding_bag(t([1, 9]), _table(t), t([0])),
    "embedding_bag, first offset": lambda t: F.embedding_bag(t([1, 1]), _table(t), t([1])),
    "embedding_bag, last offset": lambda t: F.embedding_bag(t([1, 1]), _table(t), t([0, 5])),
    "one_hot": lambda t: F.one_hot(t([1, 5]), 3),
    "one_hot, negative": lambda t: F.one_hot(t([-1, 2])),
    "cross_entropy": lambda t: F.cross_entropy(_scores(t), t([0, 3])),
    "cross_entropy, one sample": lambda t: F.cross_entropy(_zeros(t), t(3)),
    "cross_entropy, smoothed": lambda t: F.cross_entropy(
        _scores(t), t([0, 3]), label_smoothing=0.1
    ),
    "nll_loss, negative": lambda t: F.nll_loss(_scores(t), t([-1, 0])),
    "nll_loss2d": lambda t: F.nll_loss(_scores(t)[:, :, None, None], t([[[0]], [[5]]])),
    "multi_margin_loss": lambda t: F.multi_margin_loss(_scores(t), t([0, 3])),
    "multilabel_margin_loss": lambda t: F.multilabel_margin_loss(
        _scores(t), t([[0, -1, 0], [7, -1, 0]])
    ),
    "max_unpool2d": lambda t: F.max_unpool2d(t([[[1.0]]]), t([[[99]]]), [2]),
    "searchsorted": lambda t: torch.searchsorted(t([1.0, 2]), t([1.0]), sorter=t([5, 0])),
    "bincount": lambda t: torch.bincount(t([-1, 2])),
    "repeat_interleave": lambda t: torch.repeat_interleave(t([-1])),
    "masked_scatter": lambda t: _zeros(t).masked_scatter(t([True, True, True]), t([1.0])),
    "bernoulli": lambda t: torch.bernoulli(t([2.0])),
    "bernoulli_": lambda t: _out(t).bernoulli_(t([-2.0])),
    "multinomial": lambda t: torch.multinomial(t([-1.0, 1]), 1),
    "multinomial, all zero": lambda t: torch.multinomial(t([0.0, 0]), 1),
    "normal": lambda t: torch.normal(t([0.0, 1]), t([1.0, -1])),
    "poisson": lambda t: torch.poisson(t([-1.0])),
    "binary_cross_entropy": lambda t: F.binary_cross_entropy(t([2.0]), t([1.0])),
    "floor_divide": lambda t: t([1]) // t([0]),
    "floor_divide by a number": lambda t: t([1]) // 0,
    "remainder": lambda t: t([1, 2]) % t([1, 0]),
    "fmod": lambda t: torch.fmod(t([1]), t([0])),
    "div, rounded": lambda t: torch.div(t([1]), t([0]), rounding_mode="trunc"),
}


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_the_cpu(name: str, device: torch.device) -> None:
    call = REFUSED[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever it is
        call(lambda data: torch.tensor(data))
    with pytest.raises(type(expected.value)) as raised:
        call(lambda data: torch.tensor(data, device=device))
    assert type(raised.value) is type(expected.value)
    assert str(raised.value) == str(expected.value)


# What looks odd and is right.
ACCEPTED: dict[str, Callable[[Make], torch.Tensor]] = {
    "index, negative": lambda t: _table(t)[t([-3, 2])],
    "index, a mask": lambda t: _table(t)[t([True, False, True])],
    "index_fill, negative": lambda t: _zeros(t).index_fill(0, t([-3]), 1.0),
    "take, negative": lambda t: _table(t).take(t([-6, 5])),
    "take_along_dim": lambda t: _table(t).take_along_dim(t([[-1], [4]]), 0),
    "no indices": lambda t: _table(t)[t([0])[:0]],
    "ignored class": lambda t: F.nll_loss(_scores(t), t([-100, 2])),
    "another ignored class": lambda t: F.cross_entropy(_scores(t), t([7, 2]), ignore_index=7),
    "end of labels": lambda t: F.multilabel_margin_loss(_scores(t), t([[0, -1, 0], [2, 1, -1]])),
    "float division by zero": lambda t: t([1.0]) // t([0.0]),
    "true division by zero": lambda t: t([1]) / t([0]),
    "padding": lambda t: F.embedding(t([0, 2]), _table(t), padding_idx=2),
    "bag": lambda t: F.embedding_bag(t([0, 2, 1]), _table(t), t([0, 1])),
    "one_hot": lambda t: F.one_hot(t([1, 2, 0])),
    "masked_scatter": lambda t: _zeros(t).masked_scatter(t([True, False, True]), t([1.0, 2])),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_as_on_the_cpu(name: str, device: torch.device) -> None:
    expected = ACCEPTED[name](lambda data: torch.tensor(data))
    actual = ACCEPTED[name](lambda data: torch.tensor(data, device=device))
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


def test_error_comes_from_the_line_and_changes_nothing(device: torch.device) -> None:
    table = torch.arange(6.0, device=device).view(3, 2)
    before = table.clone()
    index = torch.tensor([1, 3], device=device)
    with pytest.raises(IndexError) as raised:
        table.index_copy_(0, index, table[:2])  # the line
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert last.line == "table.index_copy_(0, index, table[:2])  # the line"
    assert torch.equal(table, before)
    assert torch.equal((table + 1).cpu(), torch.arange(1.0, 7).view(3, 2))


def test_strict_does_not_look_at_values(device: torch.device) -> None:
    with tpu.set_eager_mode(tpu.EagerMode.DEFER_NEVER):
        taken = torch.tensor([1.0, 2], device=device)[torch.tensor([7], device=device)]
        assert taken.item() == 2.0


def test_backward_is_checked(device: torch.device) -> None:
    """An index that turned bad between forward and backward."""
    x = torch.randn(3, device=device, requires_grad=True)
    index = torch.tensor([0, 2], device=device)
    y = x.gather(0, index)
    with torch.no_grad():
        index.data[0] = 5  # behind autograd's back
    with pytest.raises(RuntimeError, match="index 5 is out of bounds for dimension 0 with size 3"):
        y.sum().backward()


# --- check_nan -------------------------------------------------------------------------------


def test_check_nan_names_the_first_operator(device: torch.device) -> None:
    x = torch.tensor([[1.0, 0.0, -2.0]], device=device)
    with tpu.debug.check_nan(), pytest.raises(RuntimeError) as raised:
        (x + 1 - 1).sqrt().sum()
    assert str(raised.value).startswith(
        "aten::sqrt: result float32[1, 3] has 1 NaN and 0 infinite of 3 elements, "
        "its inputs had none: self float32[1, 3]"
    )


def test_check_nan_describes_all_inputs(device: torch.device) -> None:
    x, y = torch.ones(2, 3, device=device), torch.zeros(3, device=device, dtype=torch.int32)
    with (
        tpu.debug.check_nan(),
        pytest.raises(
            RuntimeError,
            match=r"^aten::div\.Tensor: .* 0 NaN and 6 infinite of 6 elements, its inputs "
            r"had none: self float32\[2, 3\], other int32\[3\]",
        ),
    ):
        x / y


def test_check_nan_in_backward(device: torch.device) -> None:
    x = torch.tensor([0.0, 4.0], device=device, requires_grad=True)
    with tpu.debug.check_nan(), pytest.raises(RuntimeError, match="in the backward of Sqrt"):
        x.sqrt().sum().backward()


def test_check_nan_in_a_model(device: torch.device) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x - x.amax(1, keepdim=True))

    model = nn.Sequential(nn.Linear(4, 4), Broken(), nn.Linear(4, 2)).to(device)
    with (
        tpu.debug.check_nan(),
        pytest.raises(RuntimeError, match=r"^aten::log: .*self float32\[5, 4\]"),
    ):
        model(torch.randn(5, 4, device=device)).sum()


def test_check_nan_in_place_and_lists(device: torch.device) -> None:
    x = torch.tensor([1.0, -1.0], device=device)
    with tpu.debug.check_nan():
        with pytest.raises(RuntimeError, match=r"^aten::sqrt_: self float32.* has 1 NaN"):
            x.sqrt_()
        x += 1  # has NaN already
        tensors = [torch.ones(2, device=device), torch.zeros(3, device=device)]
        with pytest.raises(RuntimeError, match=r"_foreach_.*self\[1\] float32\[3\]"):
            torch._foreach_reciprocal(tensors)


def test_check_nan_passes_on_what_came_in(device: torch.device) -> None:
    inf, nan = float("inf"), float("nan")
    with tpu.debug.check_nan():
        x = torch.tensor([nan, inf], device=device)
        x.sqrt().exp()
        torch.zeros(2, 2, device=device).masked_fill(torch.eye(2, device=device).bool(), -inf)
        torch.full((2,), inf, device=device)
        torch.ones(2, device=device) * nan
        F.scaled_dot_product_attention(*(torch.randn(1, 1, 4, 8, device=device),) * 3)


def test_check_nan_without_infinities(device: torch.device) -> None:
    x = torch.zeros(2, device=device)
    with tpu.debug.check_nan(infinities=False):
        x.log()
        with pytest.raises(RuntimeError, match=r"^aten::div"):
            x / x


def test_check_nan_warns(device: torch.device) -> None:
    x = torch.zeros(2, device=device)
    with tpu.debug.check_nan("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (x / x).add(1).isnan().all()
    assert [str(w.message).split(":")[2] for w in caught] == ["div.Tensor"]


def test_check_nan_as_function(device: torch.device) -> None:
    """It holds for the default settings: outside of contexts, which this test is in."""
    with pytest.raises(ValueError, match="check_nan: expected 'raise', 'warn' or 'off'"):
        tpu.debug.check_nan("on")  # type: ignore[arg-type]
    found: list[str] = []

    def divide() -> None:
        try:
            torch.zeros(1, device=device).reciprocal()
        except RuntimeError as error:
            found.append(str(error))

    before = _C.default_eager_settings()
    tpu.debug.check_nan("raise")
    try:
        thread = threading.Thread(target=divide)
        thread.start()
        thread.join()
    finally:
        tpu.debug.check_nan("off")
    assert len(found) == 1
    assert found[0].startswith("aten::reciprocal: result float32[1] has 0 NaN and 1 infinite")
    try:
        thread = threading.Thread(target=divide)
        thread.start()
        thread.join()
    finally:
        _C.set_default_eager_settings(before)
    assert len(found) == 1
