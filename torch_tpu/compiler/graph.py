"""An ATen graph as one program of the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _C


def compile_graph(graph: GraphModule, name: str) -> Callable[[list[Any]], list[Any]]:
    """One program for an ATen graph whose placeholders are tensors and whole numbers.

    Returns what runs it: it takes the placeholders' values in a list, which it empties, and gives
    the outputs in a list. Tensors on the CPU are computed with on the device; where the graph says
    that an output is there, it is copied back. The graph's own tensors (``get_attr``) are
    further inputs.

    Nothing is lowered before the first call, and again at calls whose tensors have other layouts.
    """
    held = _tensors_as_inputs(graph)
    (output,) = graph.graph.find_nodes(op="output")
    on_host = [_is_on_host(result) for result in output.args[0]]
    replay = _Replay(graph)

    def body(inputs: list[Any]) -> list[Any]:
        with _plain_dispatch():
            return list(replay.run(*inputs, enable_io_processing=False))

    return _boxed(_C.CompiledGraph(name, body, held, on_host))


def _boxed(call: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    def run(inputs: list[Any]) -> list[Any]:
        return call(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd: it may be given a list
    return run


@contextlib.contextmanager
def _plain_dispatch() -> Iterator[None]:
    """Operators reach the device as they stand in the graph, whatever holds around the call."""
    with torch.no_grad(), torch._C._DisableAutocast(), _disable_current_modes():
        yield


class _Replay(Interpreter):
    """Calls the graph's operators, on the device those that name another one too."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        # A failing node is named by the message below.
        self.extra_traceback = False
        self.device = torch.device("tpu")

    def run_node(self, n: Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            if not getattr(error, "_named_node", False):
                error.add_note(f"while lowering {n.format_node()}{_where(n)}")
                error._named_node = True  # type: ignore[attr-defined]
            raise

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": self.device}
        return super().call_function(target, args, kwargs)


def _where(node: Node) -> str:
    trace = node.stack_trace
    return f", from\n{trace.rstrip()}" if trace else ""


def _is_on_host(result: object) -> bool:
    value = result.meta.get("val") if isinstance(result, Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _tensors_as_inputs(graph: GraphModule) -> list[torch.Tensor]:
    """Turn the graph's own tensors into placeholders after the others; returns them in order."""
    held: dict[str, tuple[Node, torch.Tensor]] = {}
    nodes: Sequence[Node] = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    last = placeholders[-1] if placeholders else None
    for node in nodes:
        if node.op != "get_attr":
            continue
        assert isinstance(node.target, str)
        value: Any = graph
        for part in node.target.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            continue
        if node.target not in held:
            place = (
                graph.graph.inserting_after(last)
                if last is not None
                else graph.graph.inserting_before(nodes[0])
            )
            with place:
                last = graph.graph.placeholder(f"held_{len(held)}")
            last.meta = dict(node.meta)
            held[node.target] = (last, value)
        node.replace_all_uses_with(held[node.target][0])
        graph.graph.erase_node(node)
    if held:
        graph.recompile()
    return [value.detach() for _, value in held.values()]
