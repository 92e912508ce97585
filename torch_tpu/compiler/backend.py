"""The Dynamo backend ``tpu``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from torch_tpu import _C
from torch_tpu.compiler.attention import fuse_attention
from torch_tpu.compiler.dynamic_family import DynamicFamily
from torch_tpu.compiler.graph import compile_graph
from torch_tpu.compiler.times import AOT
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

    ``torch.compile(model, backend="tpu")`` ends here. Any ``mode`` is accepted, and they are the
    same here. ``options`` are XLA's flags for the programs, ``dynamic_buckets``: the sizes that
    symbolic ones are padded to, or False, and ``fuse_attention``: whether attention that is written
    out is recognized, which it is by default where it pays, on TPUs.
    """
    number = next(_graph_numbers)
    flags = {**current_compiler_options(), **(options or {})}
    if flags.pop("fuse_attention", _C.platform_name() == "tpu"):
        fuse_attention(graph)
    dynamic = DynamicFamily(flags.pop("dynamic_buckets", True))

    def compiler(kind: str) -> Callable[[GraphModule, list[Any]], Callable[..., Any]]:
        def compile_part(part: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            name = f"graph {number}, {kind}"

            def static() -> Callable[..., Any]:
                return compile_graph(part, name, flags)

            if dynamic.pads(example_inputs):
                return dynamic.compile(part, name, static, flags, kind == "backward")
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
