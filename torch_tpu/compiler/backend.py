"""The Dynamo backend ``tpu``."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource
from torch._dynamo.utils import get_metrics_context
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from torch_tpu import _C
from torch_tpu.compiler.attention import fuse_attention
from torch_tpu.compiler.dynamic_family import DynamicFamily
from torch_tpu.compiler.graph import compile_graph
from torch_tpu.compiler.list_order import order_entries
from torch_tpu.compiler.times import AOT
from torch_tpu.tpu._compiler_options import split
from torch_tpu.tpu.compiler import Options, current_compiler_options

_graph_numbers = itertools.count()


def tpu(
    graph: GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Options | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for the device: one program for its forward, one for its backward.

    ``torch.compile(model, backend="tpu")`` ends here. Any ``mode`` that inductor knows is accepted,
    and they are the same here. ``options`` are those of `torch.tpu.compiler.OPTIONS` and XLA's
    flags for the programs.

    Raises:
        RuntimeError: There is no such mode, or the compiler does not take a flag.
        TypeError: An option of ours has a value of another type.
        ValueError: There is no option of that name.
    """
    _check_mode(mode)
    number = next(_graph_numbers)
    _guard_current_device(graph)
    own, flags = split({**current_compiler_options(), **(options or {})}, "torch.compile")
    if own.get("fuse_attention", _C.platform_name() == "tpu"):
        fuse_attention(graph)
    order_entries(graph)
    origin = _why_again()
    dynamic = DynamicFamily(own.get("dynamic_buckets", True))

    def compiler(kind: str) -> Callable[[GraphModule, list[Any]], Callable[..., Any]]:
        def compile_part(part: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            name = f"graph {number}, {kind}"

            def static() -> Callable[..., Any]:
                return compile_graph(part, name, flags, origin)

            if dynamic.pads(example_inputs):
                return dynamic.compile(part, name, static, flags, kind == "backward", origin)
            return static()

        return compile_part

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        decompositions={},
    )
    # Tracing makes the graph's constants, which stay: in a dry run they would be hollow.
    with AOT.running(), _C.DryRunPause():
        return backend(graph, example_inputs)


def _check_mode(mode: Any) -> None:
    if mode is None:
        return
    from torch._inductor import list_mode_options

    known = list_mode_options()
    if mode not in list(known):  # whatever it is, hashable or not
        near = difflib.get_close_matches(str(mode), known, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise RuntimeError(
            f"torch.compile: Unrecognized mode={mode}, should be one of: {', '.join(known)}{guess}"
        )


def _guard_current_device(graph: GraphModule) -> None:
    """A graph that makes tensors on ``"tpu"``, without an index, is for the current device."""
    nodes = [
        node
        for part in graph.modules()
        if isinstance(part, GraphModule)
        for node in part.graph.nodes
    ]
    if TracingContext.try_get() is None or not any(map(_names_no_index, nodes)):
        return
    function = AttrSource(AttrSource(ImportSource("torch"), "tpu"), "current_device")
    install_guard(CallFunctionNoArgsSource(function).make_guard(GuardBuilder.EQUALS_MATCH))


def _names_no_index(node: Node) -> bool:
    values: list[Any] = [*node.args, *node.kwargs.values()]
    # The string among an operator's arguments can be nothing but a device.
    if any(isinstance(v, str | torch.device) and str(v) == "tpu" for v in values):
        return True
    return node.op == "call_method" and node.target == "tpu"


def _why_again() -> str:
    """Which guard of the graphs that Dynamo has made of this code before did not hold."""
    metrics = getattr(get_metrics_context(), "_metrics", {})
    reason = metrics.get("recompile_reason")
    return f"traced again, because {reason}" if reason else ""
