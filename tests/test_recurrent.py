"""LSTM, GRU and plain recurrent networks against the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")


def compare_module(module: torch.nn.Module, *inputs: torch.Tensor, tolerance: float | None) -> None:
    names = [name for name, _ in module.named_parameters()]
    values = [p.detach() for p in module.parameters()]

    def run(inputs: list[torch.Tensor], *values: torch.Tensor) -> object:
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(module, state, tuple(inputs))

    check(run, list(inputs), *values, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_cells(cell: type[torch.nn.RNNCellBase], bias: bool, dtype: torch.dtype) -> None:
    module = cell(5, 7, bias=bias).to(dtype)  # type: ignore[call-arg]
    compare_module(module, data(3, 5, dtype=dtype), tolerance=None)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("network", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_networks(
    network: Callable[..., torch.nn.Module], layers: int, bidirectional: bool
) -> None:
    module = network(5, 7, layers, batch_first=True, bidirectional=bidirectional)
    compare_module(module, data(3, 4, 5), tolerance=1e-4)


def test_packed_sequence() -> None:
    module = torch.nn.LSTM(5, 7)
    names = [name for name, _ in module.named_parameters()]
    values = [p.detach() for p in module.parameters()]

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 1]))
        state = dict(zip(names, values, strict=True))
        output, _ = torch.func.functional_call(module, state, (packed,))
        return torch.nn.utils.rnn.pad_packed_sequence(output)[0]

    check(run, data(4, 3, 5), *values, tolerance=1e-4)
