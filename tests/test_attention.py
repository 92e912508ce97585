"""Scaled dot product attention against the CPU's."""

from __future__ import annotations

from typing import Any

import compare
import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

# (query, key, value, mask, options)
Shape = tuple[int, ...]
CASES: list[tuple[Shape, Shape, Shape, Shape | None, dict[str, Any]]] = [
    ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8), None, {}),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), None, {}),
    ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8), None, {"is_causal": True}),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), None, {"is_causal": True, "scale": 0.3}),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7), {}),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 1, 5, 7), {}),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 7), {"scale": 1.0}),
    ((3, 5, 8), (3, 7, 8), (3, 7, 8), (5, 7), {}),
    ((5, 8), (7, 8), (7, 8), None, {}),
    ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), None, {"enable_gqa": True}),
    ((2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8), None, {"enable_gqa": True, "is_causal": True}),
    ((2, 6, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8), (2, 1, 5, 7), {"enable_gqa": True}),
    ((0, 3, 5, 8), (0, 3, 5, 8), (0, 3, 5, 8), None, {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Any, dtype: torch.dtype) -> None:
    *shapes, mask, options = case

    def run(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

    bias = None if mask is None else data(*mask, dtype=dtype)
    check(run, *(data(*shape, dtype=dtype) for shape in shapes), bias, gradient_strides=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bool_mask(dtype: torch.dtype) -> None:
    mask = torch.rand(2, 1, 5, 7) < 0.6
    mask[..., 0] = True
    shapes = [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)]
    tensors = [data(*shape, dtype=dtype) for shape in shapes]
    check(functional.scaled_dot_product_attention, *tensors, mask, gradient_strides=False)


def test_rows_that_see_nothing_are_zero() -> None:
    mask = torch.rand(5, 7) < 0.6
    mask[2] = False
    mask[0, 0] = True
    tensors = [data(2, 3, n, 8) for n in (5, 7, 7)]
    check(functional.scaled_dot_product_attention, *tensors, mask, gradient_strides=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("low", ["least", -1e9], ids=str)
def test_rows_of_lowest_bias_see_all_keys_alike(low: Any, dtype: torch.dtype) -> None:
    bias = torch.randn(2, 1, 5, 7, dtype=dtype)
    bias[:, :, :2] = torch.finfo(dtype).min if low == "least" else low
    # With a bias that wants a gradient the CPU goes by products and a softmax, which is exact here.
    tensors = [data(2, 3, n, 8, dtype=dtype) for n in (5, 7, 7)]
    check(functional.scaled_dot_product_attention, *tensors, bias, gradient_strides=False)


@pytest.fixture
def dropped() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Attention with dropout over identity values, which shows the weights that were used."""
    inputs = [data(2, 3, 40, 8), data(2, 3, 40, 8), torch.eye(40).expand(2, 3, 40, 40)]
    leaves = [x.to(compare.DEVICE).requires_grad_() for x in inputs]
    query, key, value = leaves
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=0.25), leaves


def test_dropout(dropped: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    used, (query, key, value) = dropped
    kept = used.detach().cpu() != 0
    assert 0.70 < kept.float().mean() < 0.80
    q, k, v = (x.detach().cpu().requires_grad_() for x in (query, key, value))
    weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
    expected = (weights * kept / 0.75) @ v
    seed = torch.randn_like(expected)
    compare.assert_close_to_scale(used, expected, 1e-5, "output")
    # The backward draws the same mask again.
    grads = torch.autograd.grad(used, [query, key, value], seed.to(compare.DEVICE))
    wanted = torch.autograd.grad(expected, [q, k, v], seed)
    for grad, want in zip(grads, wanted, strict=True):
        compare.assert_close_to_scale(grad, want.contiguous(), 1e-5, "gradient")


def test_dropout_differs_between_calls() -> None:
    x = torch.ones(1, 1, 64, 64, device=compare.DEVICE)
    first, second = (
        functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5) for _ in range(2)
    )
    assert not torch.equal(first.cpu(), second.cpu())


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(need_weights: bool) -> None:
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    parameters = [p.detach() for p in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def run(x: torch.Tensor, *values: torch.Tensor) -> Any:
        state = dict(zip(names, values, strict=True))
        outputs = torch.func.functional_call(
            layer, state, (x, x, x), {"need_weights": need_weights}
        )
        return [out for out in outputs if out is not None]

    check(run, data(2, 5, 16), *parameters, tolerance=1e-4)


MASKS: list[dict[str, torch.Tensor]] = [
    {},
    {"mask": torch.ones(5, 5).triu(1).bool()},
    {"src_key_padding_mask": torch.tensor([[0, 0, 0, 0, 1], [0, 1, 0, 1, 1]]).bool()},
    {
        "mask": torch.ones(5, 5).triu(1).bool(),
        "src_key_padding_mask": torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool(),
    },
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masks", MASKS, ids=lambda masks: " and ".join(masks) or "no mask")
def test_encoder_layer_inference(
    masks: dict[str, torch.Tensor], activation: str, norm_first: bool, dtype: torch.dtype
) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation, dtype=dtype
    ).eval()
    x = data(2, 5, 16, dtype=dtype)
    with torch.no_grad():
        expected = layer(x, **renamed(masks))
        layer.to(compare.DEVICE)
        placed = {name: mask.to(compare.DEVICE) for name, mask in renamed(masks).items()}
        actual = layer(x.to(compare.DEVICE), **placed)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    compare.assert_close_to_scale(actual, expected, tolerance, "output")


def renamed(masks: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The masks as one layer names them."""
    return {"src_mask" if name == "mask" else name: mask for name, mask in masks.items()}


def test_encoder_inference_with_padding() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = MASKS[3]["src_key_padding_mask"]
    x = data(2, 5, 16)
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        encoder.to(compare.DEVICE)
        on_device = padding.to(compare.DEVICE)
        actual = encoder(x.to(compare.DEVICE), src_key_padding_mask=on_device)
    # The CPU leaves zeros where there is padding.
    actual = actual.masked_fill(on_device.unsqueeze(-1), 0)
    compare.assert_close_to_scale(actual, expected, 1e-5, "output")


@pytest.mark.parametrize("average", [False, True])
def test_multi_head_attention_inference(average: bool) -> None:
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    padding = torch.tensor([[False, False, True, True], [False] * 4])
    x = data(2, 4, 16)

    def run(x: torch.Tensor, padding: torch.Tensor) -> object:
        with torch.no_grad():
            return layer.to(x.device)(
                x, x, x, key_padding_mask=padding, average_attn_weights=average
            )

    check(run, x, padding, backward=False)
