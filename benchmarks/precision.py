"""What each precision of float32 products gives and costs.

Errors and times are of a matrix product on the device, the levels taking turns. With libtpu
installed, the same product is also compiled for a TPU that need not be there, and the cycles its
compiler expects are shown beside those that the passes alone take.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_tpu import PerformanceWarning, aot

tpu = torch.tpu  # type: ignore[attr-defined]

LEVELS = ("medium", "high", "highest")
PASSES = {"medium": 1, "high": 3, "highest": 6}

# Writes the program of the product as a TPU gets it, without the emulation other devices need.
WRITE_PROGRAM = """
import sys, warnings
import torch
from torch_tpu import _C
warnings.simplefilter("ignore")
_C.set_precision_emulated(False)
size = int(sys.argv[2])
with torch.tpu.precision(sys.argv[1]):
    torch.zeros(size, size, device="tpu") @ torch.zeros(size, size, device="tpu")
"""


def errors(size: int) -> dict[str, float]:
    """The largest error of a product at each level, relative to the largest result."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    exact = a.double() @ b.double()
    found = {}
    for level in LEVELS:
        with tpu.precision(level):
            product = (a.to("tpu") @ b.to("tpu")).cpu()
        found[level] = float((product.double() - exact).abs().max() / exact.abs().max())
    return found


def times(size: int, rounds: int) -> dict[str, float]:
    """Median seconds of a product at each level."""
    a, b = (torch.randn(size, size).to("tpu") for _ in range(2))
    samples: dict[str, list[float]] = {level: [] for level in LEVELS}
    for turn in range(rounds + 1):
        for level in LEVELS:
            with tpu.precision(level):
                tpu.synchronize()
                started = time.perf_counter()
                product = a @ b
                tpu.synchronize()
                elapsed = time.perf_counter() - started
            del product
            if turn:  # the first one compiles
                samples[level].append(elapsed)
    return {level: statistics.median(values) for level, values in samples.items()}


def program(level: str, size: int) -> str:
    """The StableHLO of the product."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-c", WRITE_PROGRAM, level, str(size)],
            env={**os.environ, "TORCH_TPU_DUMP_STABLEHLO": folder},
            check=True,
        )
        texts = (path.read_text() for path in Path(folder).iterdir())
        return next(text for text in texts if "dot_general" in text)


def expected_cycles(level: str, size: int, topology: str) -> int:
    """What the TPU's compiler expects, which it notes in the executable for each part of it."""
    executable = aot.compile_stablehlo(program(level, size), topology).serialize()
    # It is there more than once; the program has one part.
    return max(int(n) for n in re.findall(rb'"estimated_cycles":"(\d+)"', executable))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1024, help="of the matrices (default: 1024)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default: 15)")
    parser.add_argument("--topology", default="v5e:2x2", help="TPU (default: v5e:2x2)")
    options = parser.parse_args(arguments)
    size = options.size
    warnings.simplefilter("ignore", PerformanceWarning)
    torch.manual_seed(0)

    name = tpu.get_device_name()
    print(f"{size} x {size} float32, {name}, medians of {options.rounds} rounds\n")
    error, seconds = errors(size), times(size, options.rounds)
    print("level     max error  time, ms  to medium  to highest")
    for level in LEVELS:
        print(
            f"{level:<8}  {error[level]:9.1e}  {seconds[level] * 1e3:8.2f}"
            f"  {seconds[level] / seconds['medium']:9.2f}"
            f"  {seconds[level] / seconds['highest']:10.2f}"
        )

    if importlib.util.find_spec("libtpu") is None:
        print("\nlibtpu is not installed: nothing is compiled for a TPU")
        return 0
    print(f"\ncompiled for {options.topology}: what the compiler expects\n")
    print("level     passes  cycles  to medium")
    cycles = {level: expected_cycles(level, size, options.topology) for level in LEVELS}
    for level in LEVELS:
        print(
            f"{level:<8}  {PASSES[level]:6}  {cycles[level]:6}"
            f"  {cycles[level] / cycles['medium']:9.2f}"
        )
    per_pass = (cycles["highest"] - cycles["high"]) / (PASSES["highest"] - PASSES["high"])
    print(f"\ncycles of one pass: {per_pass:.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
