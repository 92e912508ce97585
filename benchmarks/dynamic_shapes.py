"""Sequences of many lengths through one compiled transformer: programs, and the time they take.

Three ways for each of a forward and a training step, every one in a process of its own with empty
caches: a program for each length, lengths padded to buckets, and lengths padded to a declared
bound. The first pass over the lengths traces and compiles, the second one has all its programs.
Times are the processor's, of all threads together: a busy machine makes less difference to them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_tpu

VOCABULARY = 256
WAYS = ("static", "bucketed", "bounded")
KINDS = ("forward", "backward", "inference")
NO_CACHES = {
    "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
    "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "disabled",
}


class Block(nn.Module):
    """Causal attention and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        """Random weights."""
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] as it was given."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A language model."""

    def __init__(self, layers: int, width: int, longest: int) -> None:
        """Random weights."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def work(task: str, way: str, options: argparse.Namespace) -> Callable[[Tensor], None]:
    """What is done with a batch of tokens."""
    model = Decoder(options.layers, options.width, options.longest).to("tpu")
    flags: dict[str, Any] = {"dynamic_buckets": False} if way == "static" else {}
    if task == "forward":
        model.requires_grad_(False)
        forward = torch.compile(model, backend="tpu", dynamic=True, fullgraph=True, options=flags)

        def infer(tokens: Tensor) -> None:
            forward(tokens)
            torch_tpu.tpu.synchronize()

        return infer
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)

    def loss_of(tokens: Tensor) -> Tensor:
        logits = model(tokens)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    compiled = torch.compile(loss_of, backend="tpu", dynamic=True, fullgraph=True, options=flags)

    def step(tokens: Tensor) -> None:
        loss = compiled(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_tpu.tpu.synchronize()

    return step


def measure(task: str, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Two passes over the lengths, in this process."""
    torch.manual_seed(0)
    first = options.longest - options.lengths + 1
    lengths = [first + place for place in torch.randperm(options.lengths).tolist()]
    batches = [torch.randint(0, VOCABULARY, (options.batch, length)) for length in lengths]
    torch._dynamo.config.recompile_limit = 4
    do = work(task, way, options)

    def compiles() -> tuple[int, int]:
        """Programs compiled so far: of the graphs, and all others."""
        names = [p["what"] for p in torch_tpu.tpu.compilation_cache.programs() if p["compiled"]]
        graphs = sum(name.startswith("graph") and name.endswith(KINDS) for name in names)
        return graphs, len(names) - graphs

    result: dict[str, float] = {}
    for name in ("first", "again"):
        before, start = compiles(), time.process_time()
        for batch in batches:
            tokens = batch.to("tpu")
            if way == "bounded":
                torch._dynamo.mark_dynamic(tokens, 1, min=4, max=options.longest)
            do(tokens)
        result[f"{name}_seconds"] = time.process_time() - start
        result[f"{name}_graphs"], result[f"{name}_others"] = (
            now - then for now, then in zip(compiles(), before, strict=True)
        )
    return result


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lengths", type=int, default=64, help="how many lengths there are")
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--only", nargs=2, metavar=("TASK", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only[0], options.only[1], options)))
        return
    print("| task | way | programs of the graph | others | CPU s, first pass | CPU s, second |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task in ("forward", "training step"):
        for way in WAYS:
            command = [sys.executable, *sys.argv, "--only", task, way]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | NO_CACHES
            )
            result = json.loads(done.stdout.splitlines()[-1])
            if result["again_graphs"] or result["again_others"]:
                sys.exit(f"{task}, {way}: the second pass compiled: {result}")
            print(
                f"| {task} | {way} | {result['first_graphs']:.0f} | {result['first_others']:.0f} | "
                f"{result['first_seconds']:.1f} | {result['again_seconds']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
