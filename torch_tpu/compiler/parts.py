"""A graph in parts: programs, and between them the nodes that no program can hold."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.effects import with_effects
from torch._prims.rng_prims import run_and_save_rng_state
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from torch_tpu import _C, tpu
from torch_tpu._warnings import warn_at_user_line
from torch_tpu.compiler.replay import (
    OwnTensors,
    Replay,
    device_of,
    device_of_node,
    plain_dispatch,
    where,
)

Values = dict[Node, Any]
Call = Callable[[list[Any]], list[Any]]
# Makes a program of a graph, whose outputs stay on the device.
Compile = Callable[[GraphModule, str], Call]


def failing_node(error: Exception, graph: GraphModule) -> Node | None:
    """The node of the graph that could not be lowered, if that is what the error says."""
    node = getattr(error, "_graph_node", None)
    return node if isinstance(node, Node) and node.graph is graph.graph else None


class Parts:
    """Runs a graph in parts. Every part that turns out to be no program is cut further."""

    def __init__(self, graph: GraphModule, name: str, compile_part: Compile) -> None:
        self.graph = graph
        self.name = name
        self.compile_part = compile_part
        self.lock = threading.Lock()
        self._said: set[Any] = set()
        self._placeholders = graph.graph.find_nodes(op="placeholder")
        (output,) = graph.graph.find_nodes(op="output")
        self._results: Sequence[Any] = output.args[0]
        self._own = OwnTensors(graph)
        self._own_values: dict[torch.device, list[torch.Tensor]] = {}
        nodes = _elements_behind_their_tuples(graph.graph.nodes)
        self._written = _written_placeholders(nodes)
        if not self._written:
            nodes = _effects_last(nodes)
        needed = {r for r in self._results if isinstance(r, Node)}
        self._root = _Program(self, nodes, needed)
        self._is_cut_by_device = False

    def cut_by_device(self) -> None:
        """Lets a program be of one device; what goes from one to another runs by itself.

        So does what is on the CPU, there: no device of several is the one to compute it on.
        """
        self._is_cut_by_device = True
        self._root.cut_by_device()

    def cut_at(self, node: Node, error: Exception) -> None:
        """Takes a node out of the program of the whole graph."""
        self._root.cut_at(node, error)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Runs the graph on its placeholders' values; empties the list."""
        values: Values = dict(zip(self._placeholders, inputs, strict=True))
        inputs.clear()
        device = device_of(values.values())
        originals = {}
        for node, value in values.items():
            if self._is_cut_by_device:
                continue
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                if node in self._written:
                    originals[node] = value
                values[node] = value.to(device)
        copies = {node: values[node] for node in originals}
        self._root.run(values, device)
        for node, original in originals.items():
            original.copy_(copies[node])
        out = []
        for result in self._results:
            value = values[result] if isinstance(result, Node) else result
            on_host = isinstance(value, torch.Tensor) and is_on_host(result)
            out.append(value.cpu() if on_host else value)
        return out

    def is_on_cpu(self, node: Node) -> bool:
        """Whether a node is computed on the CPU."""
        return self._is_cut_by_device and is_on_host(node)

    def replay(self, device: torch.device) -> Replay:
        """What calls a node by itself."""
        own_values = self._own_values.get(device)
        if own_values is None:
            own_values = [t.detach().to(device) for t in self._own.tensors]
            if not _C.in_dry_run():  # there they hold no data
                self._own_values[device] = own_values
        return Replay(self.graph, self._own, own_values, device)

    def warn(self, node: Node, error: Exception) -> None:
        """Says which node it is, once for each operator of the graph."""
        with self.lock:
            if node.target in self._said:
                return
            self._said.add(node.target)
        reason = str(error).split("\n", 1)[0]
        warn_at_user_line(
            f"torch.compile: {self.name} is not one program: {_call_of(node)} runs by itself, "
            f"because {reason}{where(node)}",
            trace=node.stack_trace,
        )


class _Alone:
    """A node that is called as it would be without a graph."""

    def __init__(self, parts: Parts, node: Node, drops: list[Node]) -> None:
        self.parts = parts
        self.node = node
        self.drops = drops

    def run(self, values: Values, device: torch.device) -> None:
        if self.parts.is_on_cpu(self.node):
            replay = self.parts.replay(torch.device("cpu"))
        else:
            device = device_of_node(self.node) or device
            replay = self.parts.replay(device)

        def lookup(node: Node) -> Any:
            if node.op == "get_attr":
                return replay.get_attr(node.target, (), {})
            return values[node]

        args = map_arg(self.node.args, lookup)
        kwargs = map_arg(self.node.kwargs, lookup)
        with plain_dispatch(), tpu.device(device):
            values[self.node] = replay.call_function(self.node.target, args, kwargs)
        for node in self.drops:
            del values[node]


class _Program:
    """Nodes in a row as one program, or what they were cut into."""

    def __init__(
        self, parts: Parts, nodes: list[Node], needed: set[Node], drops: Iterable[Node] = ()
    ) -> None:
        self.parts = parts
        self.nodes = nodes
        self.drops = list(drops)
        inside = set(nodes)
        self.takes = list(
            dict.fromkeys(
                a
                for n in nodes
                for a in n.all_input_nodes
                if a not in inside and a.op != "get_attr"
            )
        )
        self.gives = [node for node in nodes if node in needed]
        self.device = next((d for d in map(device_of_node, nodes) if d is not None), None)
        self.cut: list[_Alone | _Program] | None = None
        self._origins: dict[Node, Node] = {}
        self._graph: GraphModule | None = None
        self._call: Call | None = None

    def run(self, values: Values, device: torch.device) -> None:
        if self.cut is None:
            try:
                with tpu.device(self.device or device):
                    results = self._compiled()([values[node] for node in self.takes])
            except Exception as error:
                node = failing_node(error, self._graph) if self._graph is not None else None
                if node is None:
                    raise
                self.cut_at(self._origins[node], error)
            else:
                values.update(zip(self.gives, results, strict=True))
        if self.cut is not None:
            for step in self.cut:
                step.run(values, device)
        for node in self.drops:
            del values[node]

    def cut_at(self, node: Node, error: Exception) -> None:
        self.parts.warn(node, error)
        alone = {node}
        if isinstance(error, NotImplementedError):
            alone |= {other for other in self.nodes if other.target == node.target}
        _add_dependents(self.nodes, alone)
        cut = self._split(alone)
        with self.parts.lock:
            if self.cut is None:
                self.cut = cut

    def cut_by_device(self) -> None:
        movers = {
            node
            for node in self.nodes
            for device in map(device_of_node, node.all_input_nodes)
            if device is not None and device_of_node(node) not in (None, device)
        }
        movers |= {node for node in self.nodes if self.parts.is_on_cpu(node)}
        _add_dependents(self.nodes, movers)
        self.cut = self._split(movers)

    def _split(self, alone: set[Node]) -> list[_Alone | _Program]:
        runs: list[list[Node]] = [[]]
        device: torch.device | None = None
        for node in self.nodes:
            own = device_of_node(node)
            if node in alone:
                runs += [[node], []]
                device = None
            elif own is not None and device is not None and own != device:
                runs.append([node])
                device = own
            else:
                runs[-1].append(node)
                device = device or own
        runs = [run for run in runs if run]
        # From the last to the first: what is needed behind each.
        needed = set(self.gives)
        kept = needed | set(self.takes)
        steps: list[_Alone | _Program] = []
        for run in reversed(runs):
            uses = {a for n in run for a in n.all_input_nodes if a.op != "get_attr"} - set(run)
            drops = [node for node in uses if node not in needed and node not in kept]
            if run[0] in alone:
                steps.append(_Alone(self.parts, run[0], drops))
            else:
                steps.append(_Program(self.parts, run, needed, drops))
            needed = needed | uses
        return steps[::-1]

    def _compiled(self) -> Call:
        with self.parts.lock:
            if self._call is None:
                graph = Graph()
                copies: Values = {}
                for node in self.takes:
                    copies[node] = graph.placeholder(node.name)
                    copies[node].meta = node.meta

                def copied(node: Node) -> Node:
                    if node not in copies:  # one of the graph's own tensors or graphs
                        copies[node] = graph.node_copy(node)
                    return copies[node]

                for node in self.nodes:
                    copies[node] = graph.node_copy(node, copied)
                    self._origins[copies[node]] = node
                graph.output([copies[node] for node in self.gives])
                self._graph = GraphModule(self.parts.graph, graph)
                self._call = self.parts.compile_part(self._graph, self.parts.name)
            return self._call


def is_on_host(result: object) -> bool:
    """Whether the graph says that an output is a CPU tensor."""
    value = result.meta.get("val") if isinstance(result, Node) else None
    if not isinstance(value, torch.Tensor) or not isinstance(result, Node):
        return False
    return bool(value.device.type == "cpu") and not _is_random_position(result)


def _call_of(node: Node) -> str:
    """What a node calls, as people know it."""
    target = node.args[1] if _is_effect(node) else node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    return f"{getattr(target, '__name__', target)} ({node.name})"


def _is_random_position(node: Node) -> bool:
    """Of the random numbers: PyTorch takes them to be a generator's state."""
    source = node.args[0] if node.args else None
    return (
        isinstance(source, Node)
        and source.target is run_and_save_rng_state
        and bool(node.args[1] == 0)
    )


def _elements_behind_their_tuples(nodes: Iterable[Node]) -> list[Node]:
    """The nodes to run, in an order in which no tuple goes from one part to another."""
    out: dict[Node, None] = {}

    def add(node: Node) -> None:
        out[node] = None
        for user in node.users:
            if user.target is operator.getitem:
                add(user)

    for node in nodes:
        if node.op not in ("placeholder", "output", "get_attr") and node not in out:
            add(node)
    return list(out)


def _effects_last(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with the effects at the end that no other node waits for.

    A check of a factorization's outcome does not part the program, for example. Not where the
    graph writes to its inputs: a check that fails comes before that.
    """
    last: set[Node] = set()
    for node in reversed(nodes):
        of_effect = node.target is operator.getitem and _is_effect(node.args[0])
        if (of_effect or _is_effect(node)) and all(
            user.op == "output" or user in last for user in node.users
        ):
            last.add(node)
    return [n for n in nodes if n not in last] + [n for n in nodes if n in last]


def _is_effect(node: object) -> bool:
    return isinstance(node, Node) and node.target is with_effects


def _add_dependents(nodes: Sequence[Node], alone: set[Node]) -> None:
    """Adds the elements of tuples, and what takes numbers that are found out on the host.

    A program is for one value of a number.
    """
    for node in nodes:
        if node.target is operator.getitem and node.args[0] in alone:
            alone.add(node)
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if source in alone and isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
                alone.add(node)


def _written_placeholders(nodes: Iterable[Node]) -> set[Node]:
    """The placeholders that the graph writes to."""
    written = set()
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema else ()):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, Node) and value.op == "placeholder":
                written.add(value)
    return written
