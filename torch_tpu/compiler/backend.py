"""The Dynamo backend ``tpu``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from torch_tpu.compiler.graph import compile_graph

_graph_numbers = itertools.count()


def tpu(graph: GraphModule, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """Compile a Dynamo graph for the device: one program for its forward, one for its backward.

    ``torch.compile(model, backend="tpu")`` ends here.
    """
    number = next(_graph_numbers)

    def compiler(kind: str) -> Callable[[GraphModule, list[Any]], Callable[..., Any]]:
        def compile_part(part: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            return compile_graph(part, f"graph {number}, {kind}")

        return compile_part

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        decompositions={},
    )
    return backend(graph, example_inputs)
