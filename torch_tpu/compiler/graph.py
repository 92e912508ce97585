"""An ATen graph as one program of the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

import torch_tpu.compiler.control_flow  # noqa: F401 - registers how its nodes are lowered
from torch_tpu import _C, tpu
from torch_tpu.compiler.parts import Parts, failing_node, is_on_host
from torch_tpu.compiler.replay import OwnTensors, Replay, device_of, device_of_node, plain_dispatch
from torch_tpu.compiler.times import LOWERING

Call = Callable[[list[Any]], list[Any]]
Options = Mapping[str, bool | int | float | str]


def compile_graph(
    graph: GraphModule, name: str, options: Options | None = None, origin: str = ""
) -> Call:
    """One program for an ATen graph whose placeholders are tensors and numbers.

    Returns what runs it: it takes the placeholders' values in a list, which it empties, and gives
    the outputs in a list. Tensors on the CPU are computed with on the device; where the graph says
    that an output is there, it is copied back. The graph's own tensors (``get_attr``) are
    further inputs.

    Nothing is lowered before the first call, and again at calls whose tensors have other layouts. A
    node that cannot be a part of the program runs by itself, and the nodes before and after it are
    programs of their own; a ``PerformanceWarning`` says so. ``origin`` says why there is the graph.
    """
    (output,) = graph.graph.find_nodes(op="output")
    on_host = [is_on_host(result) for result in output.args[0]]
    call = _program(graph, name, on_host, options, origin)
    parts: Parts | None = None

    def compile_part(part: GraphModule, name: str) -> Call:
        return _program(part, name, [], options, origin)

    devices = {d for d in map(device_of_node, graph.graph.nodes) if d is not None}
    placeholders = graph.graph.find_nodes(op="placeholder")
    if len(devices) > 1:
        parts = Parts(graph, name, compile_part)
        parts.cut_by_device()
    elif devices and not any(map(device_of_node, placeholders)):
        call = _on_device(devices.pop(), call)

    def run(inputs: list[Any]) -> list[Any]:
        nonlocal parts
        if parts is None:
            given = list(inputs)
            try:
                return call(inputs)
            except Exception as error:
                node = failing_node(error, graph)
                if node is None:
                    raise
                parts = Parts(graph, name, compile_part)
                parts.cut_at(node, error)
            inputs[:] = given
            del given
        return parts(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd: it may be given a list
    return run


def _on_device(device: torch.device, call: Call) -> Call:
    """For a graph whose inputs do not tell the device."""

    def run(inputs: list[Any]) -> list[Any]:
        with tpu.device(device):
            return call(inputs)

    return run


def _program(
    graph: GraphModule, name: str, on_host: list[bool], options: Options | None, origin: str
) -> Call:
    own = OwnTensors(graph)

    def body(inputs: list[Any]) -> list[Any]:
        count = len(inputs) - len(own.tensors)
        replay = Replay(graph, own, inputs[count:], device_of(inputs))
        with plain_dispatch(), LOWERING.running():
            return replay(*inputs[:count])

    with plain_dispatch():  # compiling is under a mode of stand-ins for tensors
        held = [tensor.detach() for tensor in own.tensors]
    return _C.CompiledGraph(name, body, held, on_host, dict(options or {}), origin)
