"""What one program for the whole training step brings, beside separate ones.

The model is compiled by `torch.compile` (a program for its forward, one for its backward); the
optimizer steps eagerly, or as a program of its own. They take turns with `torch.tpu.compile_step`
on the same work; the table shows medians, and the median of the ratios of turns that followed each
other. Then, if libtpu is installed: what the compiler for TPUs says of each program's memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torch_tpu import _C, aot

ONE, SEPARATE, EAGER_OPTIMIZER = "one program", "separate programs", "eager optimizer"
PAUSE = 0.02
VOCABULARY = 1024


class Block(nn.Module):
    """A transformer layer: causal attention, then a feed-forward network."""

    def __init__(self, width: int) -> None:
        """Random weights."""
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the layer has found to its input."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """A decoder."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        """Random weights."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next tokens."""
        x = self.tokens(tokens) + self.positions
        out: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return out


class Contender:
    """A model, its optimizer, and a way to make a step of them."""

    def __init__(self, kind: str, sizes: argparse.Namespace) -> None:
        """`sizes`: layers, width, length and batch."""
        torch.manual_seed(0)
        model = Gpt(sizes.layers, sizes.width, sizes.length).to("tpu")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.data = torch.randint(VOCABULARY, (sizes.batch, sizes.length + 1)).to("tpu")
        self.graphs: list[_C.CompiledGraph] = []
        self.finish: Callable[[], Any] | None = None
        compiled = model if kind == ONE else torch.compile(model, fullgraph=True)

        def forward_and_backward(data: torch.Tensor) -> torch.Tensor:
            logits = compiled(data[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
            loss.backward()
            return loss

        def update() -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()

        def step(data: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = forward_and_backward(data)
            update()
            return loss

        if kind == ONE:
            self.step = torch.tpu.compile_step(step)  # type: ignore[attr-defined]
        elif kind == EAGER_OPTIMIZER:
            self.step = step
        else:
            self.finish = torch.tpu.compile_step(  # type: ignore[attr-defined]
                update, keep_gradients=True
            )

            def in_parts(data: torch.Tensor) -> torch.Tensor:
                self.optimizer.zero_grad(set_to_none=False)
                loss = forward_and_backward(data)
                assert self.finish is not None
                self.finish()
                return loss

            self.step = in_parts
        recorded = _recording(self.graphs)
        try:
            for _ in range(4):
                self.run()
        finally:
            _C.CompiledGraph = recorded  # type: ignore[misc]

    def run(self) -> float:
        """One step, to its end; gives its loss."""
        loss = float(self.step(self.data).item())
        # The loss is there before the gradients are, if it is a program's of its own.
        torch.tpu.synchronize()  # type: ignore[attr-defined]
        return loss


def _recording(graphs: list[_C.CompiledGraph]) -> Any:
    """Graphs that torch.compile makes from now on are put into the list. Returns the real class."""
    real = _C.CompiledGraph

    def make(*args: Any, **kwargs: Any) -> _C.CompiledGraph:
        graphs.append(real(*args, **kwargs))
        return graphs[-1]

    _C.CompiledGraph = make  # type: ignore[misc, assignment]
    return real


def print_table(rows: list[list[str]]) -> None:
    """Prints rows with their columns under each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def speed(contenders: dict[str, Contender], rounds: int) -> None:
    """Prints medians of interleaved turns."""
    times: dict[str, list[float]] = {kind: [] for kind in contenders}
    kinds = list(contenders)
    for turn in range(rounds):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            gc.collect()
            time.sleep(PAUSE)
            started = time.perf_counter()
            contenders[kind].run()
            times[kind].append(time.perf_counter() - started)
    rows = [["", "median ms", "against one program"]]
    for kind in kinds:
        ratios = [mine / one for mine, one in zip(times[kind], times[ONE], strict=True)]
        rows.append(
            [
                kind,
                f"{1e3 * statistics.median(times[kind]):.1f}",
                f"{statistics.median(ratios):.2f}",
            ]
        )
    print_table(rows)


def memory(contenders: dict[str, Contender], topology: str) -> None:
    """Prints what the compiler plans for each program, and what lives beside it."""
    one, separate = contenders[ONE], contenders[SEPARATE]
    parameters = sum(p.nbytes for group in one.optimizer.param_groups for p in group["params"])
    state = 2 * parameters
    texts = {"the step": one.step.text()}
    for i, graph in enumerate(separate.graphs):
        for text in graph.texts():
            texts[f"{('forward', 'backward')[i] if i < 2 else i}"] = text
    assert separate.finish is not None
    texts["optimizer"] = separate.finish.text()  # type: ignore[attr-defined]
    # What a program does not take as an argument and is in memory all the same.
    beside = {"the step": 0, "forward": state, "backward": state, "optimizer": 0}
    rows = [["program", "peak", "arguments", "accessed", "peak with what lives beside it"]]
    for name, text in texts.items():
        program = aot.compile_stablehlo(text, topology)
        plan, accessed = program.memory, program.bytes_accessed or 0
        peak = plan.peak or 0
        rows.append(
            [
                name,
                *(f"{n / 2**20:.1f}" for n in (peak, plan.arguments, accessed)),
                f"{(peak + beside.get(name, 0)) / 2**20:.1f}",
            ]
        )
    print()
    print(f"MiB, as the compiler plans them for {topology}")
    print_table(rows)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, value in (("layers", 4), ("width", 256), ("length", 128), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--topology", default="v5e:2x2", help="empty: no table of memory")
    sizes = parser.parse_args()
    contenders = {kind: Contender(kind, sizes) for kind in (ONE, SEPARATE, EAGER_OPTIMIZER)}
    speed(contenders, sizes.rounds)
    if sizes.topology:
        memory(contenders, sizes.topology)


if __name__ == "__main__":
    main()
