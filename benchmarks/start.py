"""From the start of a process to its first training steps, beside jax.jit and inductor.

The work is the training step of `compile.py`. Each contender runs twice a round, in a new process:
with an empty compilation cache, which is kept in files, and with what the first run has left there.
The contenders take turns. The table has medians, and the median over the rounds of the ratio to
jax's time in the same round. A contender whose package is not installed is left out by name.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CONTENDERS = ("compile_step", "torch.compile", "jax", "inductor")
# Of `compile_torch.py` and `compile_jax.py`.
NAMES = {"compile_step": "tpu_step", "torch.compile": "tpu", "jax": "jax", "inductor": "inductor"}
STEPS = 3


def work() -> None:
    """The contender's process: what it has done is a line."""
    name = sys.argv[2]
    # What packages print goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what: str) -> None:
        print(json.dumps([what, time.process_time()]), file=answers, flush=True)

    try:
        if name == "jax":
            import compile_jax as contenders
        else:
            import compile_torch as contenders  # type: ignore[no-redef]
        makers = contenders.steps(name)
    except ImportError as error:
        answer(f"left out: {error}")
        return
    answer("imports")
    step = makers["train"]()
    answer("model")
    for i in range(STEPS):
        step()
        answer(f"step {i + 1}")


def environment(cache: str) -> dict[str, str]:
    """Every contender's cache is in this folder, and holds all of its programs."""
    return os.environ | {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": cache,
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@dataclass
class Start:
    """When a process had done what, from its start on."""

    wall: dict[str, float]
    cpu: dict[str, float]
    missing: str = ""


def start(python: str, name: str, cache: str) -> Start:
    """One process."""
    result = Start({}, {})
    started = time.monotonic()
    process = subprocess.Popen(
        [python, str(Path(__file__)), "--work-for", NAMES[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(cache),
    )
    assert process.stdout
    for line in process.stdout:
        now = time.monotonic() - started
        what, cpu = json.loads(line)
        if what.startswith("left out"):
            result.missing = what
        else:
            result.wall[what], result.cpu[what] = now, cpu
    process.wait()
    if f"step {STEPS}" not in result.wall and not result.missing:
        result.missing = "left out: its process ended"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--python", nargs="+", default=[], metavar="CONTENDER=PATH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    pythons = dict(text.split("=", 1) for text in options.python)
    left = list(options.contenders)
    # By contender and cache, a start for each round.
    starts: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name in list(left):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    result = start(pythons.get(name, sys.executable), name, cache)
                    if result.missing:
                        print(f"{name}: {result.missing}")
                        left.remove(name)
                        break
                    starts.setdefault((name, state), []).append(getattr(result, options.clock))
    phases = ["imports", "model", *(f"step {i + 1}" for i in range(STEPS))]
    print(f"| cache | contender | {', s | '.join(phases)}, s | first step / jax |")
    print("| --- | --- |" + " --- |" * (len(phases) + 1))
    for state in ("cold", "warm"):
        for name in left:
            taken = starts[name, state]
            medians = [f"{statistics.median(t[phase] for t in taken):.2f}" for phase in phases]
            ratio = ""
            if "jax" in left:
                pairs = zip(taken, starts["jax", state], strict=True)
                ratio = f"{statistics.median(t['step 1'] / j['step 1'] for t, j in pairs):.2f}"
            print(f"| {state} | {name} | {' | '.join(medians)} | {ratio} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work-for"]:
        work()
    else:
        main()
