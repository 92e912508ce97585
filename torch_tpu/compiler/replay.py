"""Calls a graph's operators, inside the trace of a program or one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _C

Handler = Callable[["Replay", tuple[Any, ...], dict[str, Any]], Any]
_HANDLERS: dict[Any, Handler] = {}


def handles(*targets: Any) -> Callable[[Handler], Handler]:
    """Registers what is called in place of these targets."""

    def register(handler: Handler) -> Handler:
        for target in targets:
            _HANDLERS[target] = handler
        return handler

    return register


@contextlib.contextmanager
def plain_dispatch() -> Iterator[None]:
    """Operators reach the device as they stand in the graph, whatever holds around the call."""
    with torch.no_grad(), torch._C._DisableAutocast(), _disable_current_modes():
        yield


class OwnTensors:
    """The tensors that a graph and the bodies in it hold themselves (``get_attr``)."""

    def __init__(self, graph: GraphModule) -> None:
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}
        self._collect(graph)

    def _collect(self, graph: GraphModule) -> None:
        for node in graph.graph.find_nodes(op="get_attr"):
            value = attribute(graph, node)
            if isinstance(value, GraphModule):
                self._collect(value)
            elif isinstance(value, torch.Tensor) and id(value) not in self._places:
                self._places[id(value)] = len(self.tensors)
                self.tensors.append(value)

    def place(self, tensor: torch.Tensor) -> int:
        """The tensor's place in ``tensors``."""
        return self._places[id(tensor)]


def attribute(graph: GraphModule, node: Node) -> Any:
    """What a ``get_attr`` node gives."""
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


class Replay(Interpreter):
    """Interprets a graph on tensors of the device, those that it says are elsewhere too.

    ``own_values`` stand for the graph's own tensors. For one run, by one thread.
    """

    def __init__(
        self,
        graph: GraphModule,
        own: OwnTensors,
        own_values: Sequence[torch.Tensor],
        device: torch.device,
    ) -> None:
        super().__init__(graph)
        # A failing node is named by the note below.
        self.extra_traceback = False
        self.device = device
        self.own = own
        self.own_values = own_values

    def __call__(self, *inputs: Any) -> list[Any]:
        """The graph's outputs for these inputs."""
        out = self.run(*inputs, enable_io_processing=False)
        return list(out) if isinstance(out, list | tuple) else [out]

    def body(self, graph: GraphModule) -> Callable[[list[Any]], list[Any]]:
        """What runs a graph inside of this one."""

        def run(inputs: list[Any]) -> list[Any]:
            return Replay(graph, self.own, self.own_values, self.device)(*inputs)

        return run

    @contextlib.contextmanager
    def _set_current_node(self, node: Node) -> Iterator[None]:
        """Nothing: what the base class notes is global, and another thread may be tracing."""
        yield

    def run_node(self, n: Node) -> Any:
        """As the base class does; an exception carries the outermost node it came from."""
        try:
            return super().run_node(n)
        except Exception as error:
            if not _C.is_tracing():  # operators run one by one: it is the operator's error
                if not hasattr(error, "_noted"):
                    error.add_note(f"in {n.format_node()}{where(n)}")
                    error._noted = True  # type: ignore[attr-defined]
                raise
            if not hasattr(error, "_graph_node"):
                error.add_note(f"while lowering {n.format_node()}{where(n)}")
            error._graph_node = n  # type: ignore[attr-defined]
            raise

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A graph, or what stands for one of the graph's tensors."""
        value = super().get_attr(target, args, kwargs)
        return self.own_values[self.own.place(value)] if isinstance(value, torch.Tensor) else value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator, or what is registered in its place."""
        handler = _HANDLERS.get(target)
        if handler is not None:
            return handler(self, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.device}
        return super().call_function(target, args, kwargs)


def device_of(values: Iterable[Any]) -> torch.device:
    """The device of the first tpu tensor, or the current one."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            return value.device
    return torch.device("tpu", _C.current_device())


def device_of_node(node: Node) -> torch.device | None:
    """The tpu device that a node's tensors are on, as the graph says."""
    value = node.meta.get("val")
    for entry in value if isinstance(value, list | tuple) else (value,):
        if isinstance(entry, torch.Tensor) and entry.device.type == "tpu":
            return entry.device
    return None


def where(node: Node) -> str:
    """The user's line of a node, for the end of a message."""
    trace = node.stack_trace
    return f", from\n{trace.rstrip()}" if trace else ""
