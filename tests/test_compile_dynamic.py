"""torch.compile with symbolic sizes: one program for many sizes, and one for each size."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import dynamic_graphs
import pytest
import sympy
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

import torch_tpu.aot
from torch_tpu.compiler import dynamic
from torch_tpu.compiler.dynamic_sizes import Buckets, Factor, UnsupportedError, regroup

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """What one test compiles is nothing to the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def poisoned_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are padded with what would show in any result that it reached."""

    def value(dtype: torch.dtype) -> float:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.nan
        return 1 if dtype == torch.bool else 113

    monkeypatch.setattr(dynamic, "padding_value", value)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[dynamic.DynamicGraph]:
    """The graphs with symbols that are compiled."""
    return dynamic_graphs.recorded(monkeypatch)


def on(device: torch.device, value: Any) -> Any:
    """Arguments as they are on a device, leaves of gradients where they were."""
    if isinstance(value, Tensor):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    return value


def gradients(outputs: Any, inputs: tuple[Any, ...]) -> list[Tensor]:
    """The gradients of the inputs, for other cotangents at each place."""
    found = outputs if isinstance(outputs, tuple | list) else [outputs]
    parts = [
        (t.sin() * torch.arange(1, t.numel() + 1, device=t.device).reshape(t.shape).cos()).sum()
        for t in found
        if isinstance(t, Tensor) and t.requires_grad
    ]
    leaves = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
    return list(torch.autograd.grad(torch.stack(parts).sum(), leaves)) if leaves and parts else []


def assert_same(given: Any, expected: Any) -> None:
    """Equal values, sizes, strides and types; the tensors may be on different devices."""
    if isinstance(expected, tuple | list):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert given.shape == expected.shape
        assert given.dtype == expected.dtype
        torch.testing.assert_close(given.cpu(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    else:
        assert given == expected


def check(
    function: Function,
    compiled: Function,
    device: torch.device,
    arguments: tuple[Any, ...],
    dynamic_dims: tuple[int, ...] = (),
) -> None:
    """What is compiled gives what the CPU does, gradients too."""
    there = tuple(on(device, argument) for argument in arguments)
    for tensor in there:
        for dim in dynamic_dims:
            torch._dynamo.mark_dynamic(tensor, dim)
    expected = function(*arguments)
    given = compiled(*there)
    assert_same(given, expected)
    assert_same(gradients(given, there), gradients(expected, arguments))


def inputs(*sizes: int | tuple[int, ...]) -> tuple[Tensor, ...]:
    """Random tensors of these sizes, which want gradients."""
    return tuple(torch.randn(size, requires_grad=True) for size in sizes)


# --- One size at a time ---------------------------------------------------------------------------

SYMBOLIC = {
    "sizes": lambda x: (x * 2, x.shape[0], x.shape[0] * 3 + x.shape[1]),
    "view": lambda x: x.view(x.shape[0] * x.shape[1]) * x.shape[0],
    "expand": lambda x: x.sum(0).expand(x.shape[0], x.shape[1]) + 1,
    "arithmetic": lambda x: x / (x.shape[0] // 2 + 1) + x.shape[1] % 4,
    "none": lambda x: (None, x + 1, None),
    "made": lambda x: torch.full((x.shape[0], 2), x.shape[1], device=x.device) + x.sum(),
    "halves": lambda x: x[: x.shape[0] // 2] * 2,
    "float": lambda x: x * x.shape[0] ** -0.5,
}


@pytest.mark.parametrize("padded", [False, True], ids=["static", "padded"])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbols(name: str, padded: bool, device: torch.device) -> None:
    function = SYMBOLIC[name]
    options: Any = {} if padded else {"dynamic_buckets": False}
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True, options=options)
    for size in ((4, 5), (7, 3), (9, 5), (7, 3)):
        check(function, compiled, device, inputs(size))


# --- Many sizes in one program --------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def normalized(x: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) / x.var(1, keepdim=True, correction=0).add(1e-5).sqrt()


def last_and_first(x: Tensor) -> tuple[Tensor, ...]:
    return x[:, -1], x[:, 0], x[:, 1:], x[:, :-1], x[:, -3:], x[:, ::2]


def joined(x: Tensor) -> Tensor:
    start = torch.ones(x.shape[0], 1, x.shape[2], device=x.device)
    return torch.cat([start, x, x[:, :1], x], dim=1).cumsum(1)


def shifted(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 2, 1))[:, :-3].roll(1, 1) + x.flip(1)


def flattened(x: Tensor) -> Tensor:
    return (x.reshape(-1, x.shape[-1]) @ x.reshape(-1, x.shape[-1]).T).softmax(-1)


CASES: dict[str, Function] = {
    "elementwise": lambda x: torch.where(x > 0, x.exp(), x * 3),
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2)), x.prod(1)),
    "mean": lambda x: (x.mean(), x.mean(1), x.std(1), x.var()),
    "spread": lambda x: (*torch.std_mean(x, 1), *torch.var_mean(x), (x > 0).count_nonzero()),
    "extrema": lambda x: (x.amax(1), x.max(1).values, x.amin((0, 1)), x.argmax(1), x.argmin(0)),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(0), x.logsumexp(1)),
    "norm": lambda x: x.norm(dim=1) + (x > 0).any(1) + (x < 3).all(1),
    "matmul": lambda x: x.transpose(1, 2) @ x,
    "matmul of a vector": lambda x: (x @ x[0, 0], x[0, 0] @ x[0].T),
    "binary": lambda x: (
        torch.rsub(x, x.sum(1, keepdim=True), alpha=2),
        torch.complex(x, x * 2).abs(),
        x.detach().floor_divide(0.5),
    ),
    "cumsum": lambda x: x.cumsum(1),
    "normalized": normalized,
    "slices": last_and_first,
    "joined": joined,
    "shifted": shifted,
    "flattened": flattened,
    "sorted": lambda x: (*x.sort(1), *x.topk(2, dim=1)),
    "stacked": lambda x: torch.stack([x, x * 2], 1).flatten(1, 2).sum(1),
    "triangle": lambda x: (x @ x.transpose(1, 2)).tril().sum(-1),
    "layer norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "convolution": lambda x: F.conv1d(
        x.transpose(1, 2), x[0, :2].sum(0).reshape(1, -1, 1).expand(3, -1, 3).clone(), padding=1
    ),
    "softplus": lambda x: F.softplus(x, beta=1.5, threshold=2.5),
    "copies": lambda x: (
        torch.t_copy(x[0]) + torch.transpose_copy(x, 0, 1).sum(1).T,
        torch.permute_copy(x, (2, 0, 1)),
        torch.squeeze_copy(torch.unsqueeze_copy(x, 1)),
        torch.expand_copy(x.sum(2, keepdim=True), x.shape),
    ),
    "losses": lambda x: F.mse_loss(x, x.sin().detach()) + F.smooth_l1_loss(x, x.detach() * 2),
    "distances": lambda x: (x[:, :, None] - x[:, None]).square().mean((1, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_padding_reaches_no_result(
    name: str, device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    function = CASES[name]
    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for size in ((5, 9, 4), (6, 11, 4), (3, 10, 4)):
        check(function, compiled, device, inputs(size), dynamic_dims=(0, 1))
    for graph in graphs:
        assert graph.is_padded
        assert graph.num_programs == 2  # batches of 6 and 3, lengths of 12
    assert graphs


@pytest.mark.parametrize("sizes", [((5, 5, 5), (3, 3, 3)), ((5, 3, 7), (3, 5, 6))])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1.04).prod(),
        lambda x: (x.sin().transpose(0, 2) * 1.27).prod(),
        lambda x: (x.mT.square() * 1.09).prod(),
    ],
)
def test_a_backward_that_is_not_padded_gets_what_the_forward_kept(
    function: Function, sizes: Any, device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    """Its padding is in between; the graph's views rely on the strides that PyTorch knows of."""
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    for size in sizes:
        given = (torch.rand(size).add(0.5).requires_grad_(),)
        check(function, compiled, device, given)
    assert graphs and not any(graph.is_padded for graph in graphs)


@pytest.mark.parametrize("function", [attention, causal])
def test_attention(
    function: Function, device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for batch, length in ((2, 9), (3, 11)):
        tensors = inputs(*[(batch, 2, length, 8)] * 3)
        check(function, compiled, device, tensors, dynamic_dims=(0, 2))
    for rows, keys in ((9, 13), (11, 14)):
        tensors = inputs((2, 2, rows, 8), (2, 2, keys, 8), (2, 2, keys, 8))
        check(function, compiled, device, tensors, dynamic_dims=(2,))
    assert all(graph.is_padded for graph in graphs)


def test_attention_with_a_mask(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    def function(q: Tensor, keep: Tensor) -> Tensor:
        q = q.unflatten(2, (2, 8)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=keep[:, None, None, :])

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for length in (9, 11, 13):
        keep = torch.arange(length) < torch.tensor([[length - 2], [length - 5]])
        check(function, compiled, device, (*inputs((2, length, 16)), keep), dynamic_dims=(1,))
    assert all(graph.is_padded for graph in graphs)


def test_lookups(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    def function(table: Tensor, index: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (
            F.embedding(index, table),
            table[index].sum(),
            x.gather(1, index % x.shape[1]),
            x[torch.arange(x.shape[0], device=x.device), index[:, -1] % x.shape[1]],
            torch.zeros(20, device=x.device).index_add(0, index[0], x[0]),
        )

    compiled = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    for batch, length in ((2, 9), (3, 11)):
        index = torch.randint(0, 20, (batch, length))
        (table, x) = inputs((20, 6), (batch, length))
        check(function, compiled, device, (table, index, x))
    assert all(graph.is_padded for graph in graphs)


def test_cross_entropy(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    def function(logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        flat, places = logits.flatten(0, 1), target.flatten()
        return (
            F.cross_entropy(flat, places),
            F.cross_entropy(flat, places, reduction="sum", label_smoothing=0.1),
            F.cross_entropy(flat, places, reduction="none").view(target.shape),
        )

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for batch, length in ((2, 9), (3, 11)):
        target = torch.randint(0, 7, (batch, length))
        target[0, 3] = -100
        check(function, compiled, device, (*inputs((batch, length, 7)), target), (0, 1))
    assert all(graph.is_padded for graph in graphs)


def test_dropout(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="tpu", dynamic=True)
    for size in (90, 93):
        x = torch.ones(size, device=device, requires_grad=True)
        kept = compiled(x)
        kept.sum().backward()
        assert set(kept.tolist()) == {0.0, 2.0}
        assert_same(x.grad, kept.detach().cpu())
    assert [graph.num_programs for graph in graphs] == [1, 1]
    assert all(graph.is_padded for graph in graphs)


def test_sizes_that_have_to_be_equal(device: torch.device) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.flatten() * y.flatten()).sum()

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for size, other in (((5, 9), (5, 9)), ((6, 10), (6, 10)), ((6, 9), (9, 6))):
        x, y = torch.randn(size), torch.randn(other)
        there = [x.to(device), y.to(device)]
        for tensor in there:
            torch._dynamo.mark_dynamic(tensor, 0)
            torch._dynamo.mark_dynamic(tensor, 1)
        assert_same(compiled(*there), function(x, y))


# --- A transformer --------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.RMSNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A language model, of the causal kind or with masked padding."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(31, 16)
        self.places = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block(16, 2, causal) for _ in range(1))
        self.head = nn.Linear(16, 31)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        mask = None if self.causal else (tokens != 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch_of(size: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens of which the last ones of a row may be 0, and what is to be predicted."""
    tokens = torch.randint(1, 31, (size, length))
    tokens[0, length // 2 :] = 0
    return tokens, torch.where(tokens == 0, -100, tokens)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "padding mask"])
def test_training_a_transformer(
    causal: bool, device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    ours, theirs = Transformer(causal).to(device), Transformer(causal)
    theirs.load_state_dict({name: t.cpu() for name, t in ours.state_dict().items()})
    compiled = torch.compile(ours, backend="tpu", fullgraph=True, dynamic=True)
    steps: list[tuple[torch.optim.SGD, Any, torch.device]] = [
        (torch.optim.SGD(ours.parameters(), 0.1), compiled, device),
        (torch.optim.SGD(theirs.parameters(), 0.1), theirs, torch.device("cpu")),
    ]
    for size, length in ((3, 9), (3, 12), (4, 10), (3, 11)):
        tokens, target = batch_of(size, length)
        losses = []
        for optimizer, model, where in steps:
            optimizer.zero_grad()
            loss = model(tokens.to(where), target.to(where))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    for name, parameter in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].cpu(), parameter, rtol=1e-3, atol=1e-4)
    assert len(graphs) == 2
    for graph in graphs:
        assert graph.is_padded
        assert graph.num_programs == 2  # 3 x 12 and 4 x 12


def test_training_a_convolutional_network(
    device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    theirs = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    ours = copy.deepcopy(theirs).to(device)
    compiled = torch.compile(ours, backend="tpu", fullgraph=True)
    for size in (5, 6):
        images, target = torch.randn(size, 2, 8, 8), torch.randint(0, 3, (size,))
        there = images.to(device)
        torch._dynamo.mark_dynamic(there, 0)
        expected = F.cross_entropy(theirs(images), target)
        loss = F.cross_entropy(compiled(there), target.to(device))
        assert_same(loss, expected)
        expected.backward()
        loss.backward()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_same(parameter.grad, other.grad)
    assert_same(list(ours.buffers()), list(theirs.buffers()))
    for graph in graphs:
        assert graph.is_padded
        assert graph.num_programs == 1
    assert len(graphs) == 2


# --- Writes ---------------------------------------------------------------------------------------


def doubled(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum() + y.sum()


def crossed(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.copy_(x * 3)
    return x.view(-1) * 2


def of_parts(x: Tensor, y: Tensor) -> Tensor:
    x[1:3].mul_(2)
    y[:, 0] = 5
    return x


def through_a_view(x: Tensor, y: Tensor) -> Tensor:
    x.view(-1).add_(1)
    x.t().mul_(3)
    y.relu_()
    return x.sum(0)


def filled(x: Tensor, y: Tensor) -> None:
    x.fill_(3.0)
    y.zero_().add_(x[0])


def of_other_dtype(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y > 0)
    return y.softmax(-1)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "function", [doubled, crossed, of_parts, through_a_view, filled, of_other_dtype]
)
def test_written_inputs(
    function: Function, dim: int, device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    for size in (5, 7, 8, 6):
        shape = [4, 4]
        shape[dim] = size
        mine = [torch.randn(shape) for _ in range(2)]
        there = [t.to(device) for t in mine]
        assert_same(compiled(*there), function(*mine))
        assert_same(there, mine)
    assert len(graphs) == 1
    assert graphs[0].is_padded
    assert graphs[0].num_programs == 2  # 6 and 8


def test_a_written_part_of_a_larger_tensor(
    device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    compiled = torch.compile(doubled, backend="tpu", dynamic=True, fullgraph=True)
    for size in (5, 7):
        whole, y = torch.randn(9, 6), torch.randn(2)
        there = whole.to(device)
        assert_same(
            compiled(there[1:].t()[:, :size], y.to(device)), doubled(whole[1:].t()[:, :size], y)
        )
        assert_same(there, whole)
    assert graphs[-1].is_padded


def test_a_training_step_that_counts(
    device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    def function(x: Tensor, seen: Tensor, w: Tensor) -> Tensor:
        seen.add_(x.detach().abs())
        return (x * w).sin().sum() + seen.sum()

    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    for size in (5, 7, 6):
        x, seen, w = torch.randn(size, 3), torch.randn(size, 3), torch.randn(3, requires_grad=True)
        there = [x.to(device), seen.to(device), w.detach().to(device).requires_grad_()]
        expected, given = function(x, seen, w), compiled(*there)
        assert_same(given, expected)
        assert_same(there[1], seen)
        expected.backward()
        given.backward()
        assert_same(there[2].grad, w.grad)
    assert all(graph.is_padded for graph in graphs)


def of_itself(x: Tensor) -> tuple[Tensor, ...]:
    return ((x * x.sin()).sum(),)


def of_a_view(x: Tensor) -> tuple[Tensor, ...]:
    return ((x.t() @ x).sum(), x.sum())


def of_a_result(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y * 2, y


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("function", [of_itself, of_a_view, of_a_result])
def test_writes_to_what_is_kept_for_backward(
    function: Function, dim: int, device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    """Raises, as eager does, whether the kept tensor has padding or not."""
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    for size in (5, 7, 8):
        shape = [4, 4]
        shape[dim] = size
        for run, x in ((function, torch.randn(shape)), (compiled, torch.randn(shape).to(device))):
            x.requires_grad_()
            first, *others = run(x)
            with torch.no_grad():
                (others[0] if function is of_a_result else x).mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                first.sum().backward()
            x = x.detach().requires_grad_()
            first, *others = run(x)
            first.sum().backward()  # not written: fine
    assert all(graph.is_padded for graph in graphs)


# --- Where elements lie ---------------------------------------------------------------------------

BATCH, LENGTH = sympy.symbols("batch length", integer=True, positive=True)


def factor(size: Any, padded: int | None = None) -> Factor:
    return Factor(sympy.sympify(size), int(size) if padded is None else padded)


REGROUPED: list[tuple[list[Factor], list[Any], list[list[Factor]]]] = [
    # [batch, length, 6] -> [batch * length, 6]
    (
        [factor(BATCH, 4), factor(LENGTH, 12), factor(6)],
        [BATCH * LENGTH, 6],
        [[factor(BATCH, 4), factor(LENGTH, 12)], [factor(6)]],
    ),
    # [2, length, 12] -> [2 * length, 3, 4]
    (
        [factor(2), factor(LENGTH, 12), factor(12)],
        [2 * LENGTH, 3, 4],
        [[factor(2), factor(LENGTH, 12)], [factor(3)], [factor(4)]],
    ),
    # [4 * length] with its elements in front -> [length, 1, 4]
    ([factor(4 * LENGTH, 48)], [LENGTH, 1, 4], [[factor(LENGTH, 12)], [], [factor(4)]]),
    # [6, 4] -> [8, 3]
    ([factor(6), factor(4)], [8, 3], [[factor(8)], [factor(3)]]),
]


@pytest.mark.parametrize(("factors", "sizes", "dims"), REGROUPED)
def test_dimensions_know_what_they_are_made_of(
    factors: list[Factor], sizes: list[Any], dims: list[list[Factor]]
) -> None:
    expected = tuple(map(tuple, dims))
    assert regroup(factors, [sympy.sympify(size) for size in sizes]) == expected


@pytest.mark.parametrize(
    ("factors", "sizes"),
    [
        # The elements of the first half would not be in front.
        ([factor(4 * LENGTH, 48)], [4, LENGTH]),
        ([factor(BATCH, 4), factor(LENGTH, 12)], [LENGTH, BATCH]),
        ([factor(BATCH, 4), factor(6)], [6, BATCH]),
        ([factor(LENGTH, 12)], [LENGTH, 2]),
    ],
)
def test_other_shapes_are_refused(factors: list[Factor], sizes: list[Any]) -> None:
    with pytest.raises(UnsupportedError):
        regroup(factors, [sympy.sympify(size) for size in sizes])


def test_buckets() -> None:
    usual = Buckets()
    sizes = [2, 3, 4, 5, 6, 7, 9, 12, 13, 17, 24, 25, 1000, 1025]
    padded = [2, 3, 4, 6, 6, 8, 12, 12, 16, 24, 24, 32, 1024, 1536]
    assert [usual.round_up(size) for size in sizes] == padded
    own = Buckets([100, 30])
    assert [own.round_up(size) for size in (2, 30, 31, 100, 101, 250)] == [
        30,
        30,
        100,
        100,
        200,
        300,
    ]
    with pytest.raises(ValueError, match="positive"):
        Buckets([])


# --- Bounds and buckets ---------------------------------------------------------------------------


def test_a_declared_bound_is_the_only_size(
    device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    function = CASES["softmax"]
    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for length in (3, 20, 7, 32, 11):
        (x,) = inputs((2, length, 4))
        there = on(device, x)
        torch._dynamo.mark_dynamic(there, 1, min=2, max=32)
        assert_same(compiled(there), function(x))
    (graph, *others) = graphs
    assert graph.num_programs == 1
    assert "tensor<2x32x4xf32>" in graph.texts()[0]
    assert len(others) <= 1  # a backward


def test_buckets_of_ones_own(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    def function(x: Tensor) -> Tensor:
        return x.softmax(0)

    options: Any = {"dynamic_buckets": [10, 40]}
    compiled = torch.compile(function, backend="tpu", dynamic=True, options=options)
    for size in (3, 9, 10, 11, 40, 41, 79, 80):
        x = torch.randn(size)
        assert_same(compiled(x.to(device)), function(x))
    (graph,) = graphs
    assert graph.num_programs == 3  # 10, 40, 80


def test_automatic_dynamic(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    function = CASES["normalized"]
    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for length in (17, 18, 19, 20, 21, 22, 23, 24):
        check(function, compiled, device, inputs((2, length)))
    assert [graph.num_programs for graph in graphs] == [1, 1]


def test_numbers_are_operands(device: torch.device, graphs: list[dynamic.DynamicGraph]) -> None:
    def function(x: Tensor, k: int) -> Tensor:
        return x * k + x[:, k : k + 3].sum()

    compiled = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    for k in (2, 3, 7, 9):
        x = torch.randn(5, 14)
        assert_same(compiled(x.to(device), k), function(x, k))
    (graph,) = graphs
    assert graph.is_padded
    assert graph.num_programs == 1


@pytest.mark.parametrize("buckets", ["all", None, [3.5], [8, "16"], [], [0]])
def test_buckets_are_checked(buckets: Any, device: torch.device) -> None:
    with pytest.raises(Exception, match="dynamic_buckets: expected"):
        torch.compile(
            lambda x: x + 1, backend="tpu", dynamic=True, options={"dynamic_buckets": buckets}
        )(torch.ones(3, device=device))


def test_tensors_of_the_graph_itself(
    device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    def function(x: Tensor) -> Tensor:
        return x[torch.tensor([1, 0, 1], device=x.device)].sum(0) + x.mean(0)

    compiled = torch.compile(function, dynamic=True)
    for size in (5, 7):
        x = torch.randn(size, 4)
        assert_same(compiled(x.to(device)), function(x))
    (graph,) = graphs
    assert graph.is_padded


# --- What is not padded ---------------------------------------------------------------------------


def test_checks_of_values_are_named(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(torch.linalg.inv, backend="tpu", dynamic=True)
    for size in (3, 5):
        x = torch.eye(size) + torch.rand(size, size) / size
        torch.testing.assert_close(compiled(x.to(device)).cpu(), torch.linalg.inv(x))
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "each size is compiled for itself: " in record.getMessage()
    assert record.getMessage().endswith(("a check of values is in the graph", "padded tensors"))


def test_an_operator_without_a_rule_is_named(
    device: torch.device,
    graphs: list[dynamic.DynamicGraph],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(x: Tensor) -> Tensor:
        return x.unfold(0, 2, 1).sum(1) * 2

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    with caplog.at_level(logging.WARNING, "torch_tpu.compiler.dynamic"):
        for size in (5, 7):
            check(function, compiled, device, inputs(size))
    (message,) = {record.getMessage() for record in caplog.records}
    assert "aten.unfold.default" in message
    assert "each size is compiled for itself" in message
    assert not any(graph.is_padded for graph in graphs)


def test_the_first_padded_size_is_logged(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="tpu", dynamic=True)
    with caplog.at_level(logging.INFO, "torch_tpu.compiler.dynamic"):
        compiled(torch.ones(5, device=device))
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.endswith("sizes are padded: 5 to 6")


# --- Other compilers ------------------------------------------------------------------------------


def test_padded_programs_compile_for_a_tpu(
    device: torch.device, graphs: list[dynamic.DynamicGraph]
) -> None:
    pytest.importorskip("libtpu", reason="the compiler for TPUs is not installed")
    model = Transformer(causal=True).to(device)
    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    tokens, target = (t.to(device) for t in batch_of(2, 9))
    for tensor in (tokens, target):
        torch._dynamo.mark_dynamic(tensor, 1, min=2, max=32)
    compiled(tokens, target).backward()
    assert len(graphs) == 2
    for graph in graphs:
        (text,) = graph.texts()
        program = torch_tpu.aot.compile_stablehlo(text, topology="v5e:2x2")
        assert program.memory.peak
