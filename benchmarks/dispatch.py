"""What an eager op costs on the device, beside PyTorch on the CPU and jax, all in one run.

Each measure is a chain of dependent ops on small tensors, timed from the first call until the
last result is there. The contenders take turns, several rounds of each, and the table shows
medians and their ratios: those hold on a busy machine too, where times do not.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import torch_tpu

# Runs a chain of the given number of ops and waits for its result.
Chain = Callable[[int], None]


@dataclass(frozen=True)
class Measure:
    """A kind of op: how it is shown, how many are chained, and the flops in one."""

    name: str
    chain: int
    flops: float = 0.0


MEASURES = (
    Measure("add, 8x8", 1000),
    Measure("add_ in place, 8x8", 1000),
    Measure("multiply by a number, 8x8", 1000),
    Measure("relu, 8x8", 1000),
    Measure("matmul, 64x64", 500),
    Measure("add, 8x8, with autograd", 500),
    Measure("matmul, 1024x1024", 4, 2 * 1024.0**3),
)


# Seconds between two turns.
PAUSE = 0.05


def torch_chains(device: torch.device) -> dict[str, Chain]:
    """Returns the chains on a PyTorch device."""
    small = torch.ones(8, 8, device=device)
    other = torch.full((8, 8), 1e-3, device=device)
    square = torch.eye(64, device=device)
    large = torch.eye(1024, device=device)
    tracked = torch.ones(8, 8, device=device, requires_grad=True)

    def finish() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    def add(count: int) -> None:
        x = small
        for _ in range(count):
            x = x + other
        finish()

    def add_in_place(count: int) -> None:
        x = small.clone()
        for _ in range(count):
            x += other
        finish()

    def multiply(count: int) -> None:
        x = small
        for _ in range(count):
            x = x * 1.0001
        finish()

    def relu(count: int) -> None:
        x = small
        for _ in range(count):
            x = x.relu()
        finish()

    def matmul(count: int) -> None:
        x = square
        for _ in range(count):
            x = x @ square
        finish()

    def add_with_autograd(count: int) -> None:
        x = tracked
        for _ in range(count):
            x = x + other
        finish()

    def large_matmul(count: int) -> None:
        x = large
        for _ in range(count):
            x = x @ large
        finish()

    chains = (add, add_in_place, multiply, relu, matmul, add_with_autograd, large_matmul)
    return dict(zip((measure.name for measure in MEASURES), chains, strict=True))


def jax_chains() -> dict[str, Chain]:
    """Returns the chains in jax, op by op; it has no in-place add and no tape to compare."""
    from jax import numpy as jnp

    small, other = jnp.ones((8, 8)), jnp.full((8, 8), 1e-3)
    square, large = jnp.eye(64), jnp.eye(1024)

    def chain(step: Callable[[Any], Any], start: Any) -> Chain:
        def run(count: int) -> None:
            x = start
            for _ in range(count):
                x = step(x)
            x.block_until_ready()

        return run

    return {
        "add, 8x8": chain(lambda x: x + other, small),
        "multiply by a number, 8x8": chain(lambda x: x * 1.0001, small),
        "relu, 8x8": chain(lambda x: jnp.maximum(x, 0), small),
        "matmul, 64x64": chain(lambda x: x @ square, square),
        "matmul, 1024x1024": chain(lambda x: x @ large, large),
    }


def median_times(
    contenders: dict[str, dict[str, Chain]], rounds: int
) -> dict[tuple[str, str], float]:
    """Returns the median seconds per op of each contender and measure, run in turns."""
    samples: dict[tuple[str, str], list[float]] = {}
    for measure in MEASURES:
        runs = {
            who: chains[measure.name]
            for who, chains in contenders.items()
            if measure.name in chains
        }
        for run in runs.values():
            run(measure.chain)
        for _ in range(rounds):
            for who, run in runs.items():
                gc.collect()
                # OpenMP's threads go on spinning after their turn: they would take the cores
                # from the next contender.
                time.sleep(PAUSE)
                started = time.perf_counter()
                run(measure.chain)
                elapsed = (time.perf_counter() - started) / measure.chain
                samples.setdefault((who, measure.name), []).append(elapsed)
    return {key: statistics.median(values) for key, values in samples.items()}


def print_table(names: Sequence[str], times: dict[tuple[str, str], float]) -> None:
    """Prints times in microseconds and their ratios to the first contender's."""
    first, *others = names
    header = ["per op", *(f"{name}, us" for name in names), *(f"{first} / {o}" for o in others)]
    rows = [header]
    for measure in MEASURES:
        mine = times[first, measure.name]
        row = [measure.name]
        for name in names:
            value = times.get((name, measure.name))
            row.append("-" if value is None else f"{value * 1e6:.2f}")
        for name in others:
            value = times.get((name, measure.name))
            row.append("-" if value is None else f"{mine / value:.2f}")
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for index, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))
        if index == 0:
            print("  ".join("-" * width for width in widths))
    for measure in MEASURES:
        if measure.flops:
            rates = (
                f"{name} {measure.flops / times[name, measure.name] / 1e9:.0f}"
                for name in names
                if (name, measure.name) in times
            )
            print(f"\n{measure.name}, GFLOP/s: {', '.join(rates)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="tpu", help="device to measure (default: tpu)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default: 15)")
    options = parser.parse_args(arguments)
    # The same products for every contender.
    torch.set_float32_matmul_precision("highest")
    warnings.filterwarnings("ignore", category=torch_tpu.PerformanceWarning)
    contenders = {options.device: torch_chains(torch.device(options.device))}
    contenders.setdefault("cpu", torch_chains(torch.device("cpu")))
    if importlib.util.find_spec("jax") is not None:
        contenders["jax"] = jax_chains()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, medians of {options.rounds} rounds\n")
    print_table(list(contenders), median_times(contenders, options.rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
