"""What a TPU saves when attention that is written out is compiled as the operator for it.

    python benchmarks/attention_fusion.py [--topology v5e:1x1]

Compiles forward and backward of causal attention with and without `fuse_attention`, for a TPU that
need not be there (libtpu has to be installed), and prints the compiler's figures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_tpu import _C, aot, tpu

BATCH, HEADS, ROWS, DEPTH = 2, 8, 512, 64


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, later: torch.Tensor
) -> torch.Tensor:
    """Causal attention as models write it."""
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(DEPTH))
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


@contextmanager
def noted_graphs() -> Iterator[list[tuple[str, _C.CompiledGraph]]]:
    """The graphs that are compiled in the block, with their names."""
    graphs: list[tuple[str, _C.CompiledGraph]] = []
    before = _C.CompiledGraph

    class Noted(before):  # type: ignore[valid-type,misc]
        def __init__(self, name: str, *args: Any) -> None:
            super().__init__(name, *args)
            graphs.append((name, self))

    _C.CompiledGraph = Noted  # type: ignore[misc,assignment]
    try:
        yield graphs
    finally:
        _C.CompiledGraph = before  # type: ignore[misc]


def main() -> None:
    """Prints a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topology", default="v5e:1x1")
    topology = parser.parse_args().topology
    later = torch.ones(ROWS, ROWS, dtype=torch.bool, device="tpu").triu(1)
    print("| written out | program | bytes accessed, MB | peak, MiB | GFLOP |")
    print("| --- | --- | --- | --- | --- |")
    for fuse in (False, True):
        torch.compiler.reset()
        shape = (BATCH, HEADS, ROWS, DEPTH)
        q, k, v = (torch.empty(shape, device="tpu").requires_grad_() for _ in range(3))
        compiled = torch.compile(attention, fullgraph=True, options={"fuse_attention": fuse})
        with noted_graphs() as graphs:
            tpu.warmup(lambda: compiled(q, k, v, later).sum().backward())  # noqa: B023 - runs here
        for name, made in graphs:
            (text,) = made.texts()
            program = aot.compile_stablehlo(text, topology=topology)
            print(
                f"| {'as the operator' if fuse else 'as it is'} | {name.split()[-1]} "
                f"| {(program.bytes_accessed or 0) / 1e6:.0f} "
                f"| {(program.memory.peak or 0) / 2**20:.0f} | {(program.flops or 0) / 1e9:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
