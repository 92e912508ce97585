"""Control flow of a graph as regions of its program, and what else is no operator.

Outside of a trace, where a graph runs node by node, PyTorch's own functions do it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from torch_tpu import _C, tpu
from torch_tpu.compiler.replay import Replay, handles


@handles(cond_op)
def _cond(replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    predicate, on_true, on_false, operands = args
    if isinstance(predicate, torch.Tensor):
        if _C.is_tracing():
            bodies = replay.body(on_true), replay.body(on_false)
            return tuple(_C.trace_cond(predicate, *bodies, list(operands)))
        predicate = predicate.item()
    return tuple(replay.body(on_true if predicate else on_false)(list(operands)))


@handles(while_loop_op)
def _while_loop(replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    condition, body, carried, others = (*args, ())[:4]
    go_on, step = replay.body(condition), replay.body(body)
    if _C.is_tracing():
        return tuple(_C.trace_while_loop(go_on, step, list(carried), list(others)))
    now = list(carried)
    while go_on([*now, *others])[0]:
        now = step([*now, *others])
    return tuple(now)


@handles(scan_op)
def _scan(replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    body, carried, slices, others = (*args, ())[:4]
    if _C.is_tracing():
        traced = _C.trace_scan(replay.body(body), list(carried), list(slices), list(others))
        return tuple(traced)
    return tuple(_scan_steps(replay, body, list(carried), list(slices), list(others)))


@handles(map_impl)
def _map(replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    body, slices, others = (*args, ())[:3]
    if _C.is_tracing():
        return tuple(_C.trace_scan(replay.body(body), [], list(slices), list(others)))
    return tuple(_scan_steps(replay, body, [], list(slices), list(others)))


def _scan_steps(
    replay: Replay, body: Any, carried: list[Any], slices: list[Any], others: list[Any]
) -> list[Any]:
    step = replay.body(body)
    rows = []
    count = len(carried)
    for i in range(slices[0].shape[0]):
        out = step([*carried, *(whole[i] for whole in slices), *others])
        carried = out[:count]
        rows.append(out[count:])
    stacked = [
        None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)
    ]
    return [*carried, *stacked]


@handles(run_and_save_rng_state)
def _run_and_save(replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator, behind where in the random numbers it begins."""
    operator, *rest = args
    if _C.is_tracing():
        position = _C.trace_random_position(_device_of(rest, kwargs))
    else:
        generator = _generator(rest, kwargs)
        position = generator.get_state().view(torch.uint64).to(generator.device)
    return position, replay.call_function(operator, tuple(rest), kwargs)


@handles(run_with_rng_state)
def _run_with(replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator with the random numbers it had there."""
    position, operator, *rest = args

    def call(inputs: list[Any]) -> list[Any]:
        out = replay.call_function(operator, tuple(rest), kwargs)
        return list(out) if isinstance(out, list | tuple) else [out]

    if _C.is_tracing():
        out = _C.trace_at_random_position(position, call, [])
    else:
        generator = _generator(rest, kwargs)
        before = generator.get_state()
        generator.set_state(position.cpu().view(torch.uint8))
        try:
            out = call([])
        finally:
            generator.set_state(before)
    returns_one = len(operator._schema.returns) == 1
    return out[0] if returns_one else tuple(out)


def _device_of(args: list[Any], kwargs: dict[str, Any]) -> int:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            return value.device.index
    return tpu.current_device()


def _generator(args: list[Any], kwargs: dict[str, Any]) -> torch.Generator:
    return tpu.default_generators[_device_of(args, kwargs)]
