"""torch.compile and compile_step on the device beside jax.jit, torch_xla and inductor.

Each contender has a process of its own, and they take turns: one round is a slice of time for each.
The table has medians, and the median over the rounds of the ratio to the device's time in the same
round, which holds on a busy machine too, where times do not. A contender whose package is not
installed is left out by name. `--python jax=PATH` runs one with another interpreter: torch_xla, for
one, wants another torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORK = ("train", "forward", "decode", "call 10", "call 100", "call 500")
CONTENDERS = ("tpu", "tpu_step", "jax", "inductor", "torch_xla")
MODULES = dict.fromkeys(CONTENDERS, "compile_torch") | {"jax": "compile_jax"}
PACKAGES = {"jax": "jax", "torch_xla": "torch_xla"}
UNITS = {"train": "ms", "forward": "ms", "decode": "tokens/s"}

Sample = dict[str, float]


def _slice(step: Any, seconds: float) -> Sample:
    """Runs the step for so long; medians of wall clock and of this process's CPU time."""
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(wall) < 3:
        started, used = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return {
        "wall": statistics.median(wall),
        "best": min(wall),
        "cpu": statistics.median(cpu),
    }


def work_for(name: str) -> None:
    """The contender's process: makes and runs what it is asked for, line by line."""
    # What packages print goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        if name in PACKAGES:
            importlib.import_module(PACKAGES[name])
        makers = importlib.import_module(MODULES[name]).steps(name)
    except ImportError as error:
        answer({"missing": str(error)})
        return
    answer({"work": list(makers)})
    made: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        what = request["work"]
        try:
            if what not in made:
                made.clear()
                step = makers[what]()
                started = time.perf_counter()
                step()
                first = time.perf_counter() - started
                for _ in range(5):
                    step()
                made[what] = (step, first)
            step, first = made[what]
            answer(_slice(step, request["seconds"]) | {"first": first})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {str(error)[:200]}"})


@dataclass
class Contender:
    """A process that works on request."""

    name: str
    process: subprocess.Popen[str]
    work: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, python: str) -> Contender | None:
        """Starts it; None, with a message, when it cannot."""
        process = subprocess.Popen(
            [python, str(Path(__file__)), "--work-for", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        contender = cls(name, process)
        hello = contender._read()
        if "work" not in hello:
            print(f"{name}: left out, {hello.get('missing') or 'its process ended'}")
            return None
        contender.work = hello["work"]
        return contender

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "its process ended"}

    def run(self, work: str, seconds: float) -> dict[str, Any]:
        """One slice of a piece of work."""
        assert self.process.stdin
        print(json.dumps({"work": work, "seconds": seconds}), file=self.process.stdin, flush=True)
        return self._read()

    def stop(self) -> None:
        """Ends the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(
    contenders: list[Contender], work: str, rounds: int, seconds: float
) -> dict[str, list[Sample]]:
    """Samples of each contender, round by round; those that fail are left out by name."""
    samples: dict[str, list[Sample]] = {c.name: [] for c in contenders if work in c.work}
    for _ in range(rounds + 1):  # the first one compiles
        for contender in contenders:
            if contender.name not in samples:
                continue
            sample = contender.run(work, seconds)
            if "error" in sample:
                print(f"{contender.name}, {work}: left out, {sample['error']}")
                del samples[contender.name]
            else:
                samples[contender.name].append(sample)
    return {name: taken[1:] for name, taken in samples.items()}


def shown(work: str, seconds: float, tokens: int) -> float:
    """A time in the unit of the work."""
    if work == "decode":
        return tokens / seconds
    return seconds * (1e3 if work in UNITS else 1e6)


def table(work: str, samples: dict[str, list[Sample]], clock: str, tokens: int) -> list[str]:
    """Lines of the table for one piece of work."""
    base = next((name for name in ("tpu_step", "tpu") if samples.get(name)), None)
    lines = []
    for name, taken in samples.items():
        median = statistics.median(sample[clock] for sample in taken)
        best = min(sample["best" if clock == "wall" else clock] for sample in taken)
        ratio = "" if base is None else "1"
        if base and name != base:
            pairs = zip(samples[base], taken, strict=True)
            ratio = f"{statistics.median(b[clock] / other[clock] for b, other in pairs):.2f}"
        lines.append(
            f"| {work} | {name} | {shown(work, median, tokens):.1f} "
            f"| {shown(work, best, tokens):.1f} | {UNITS.get(work, 'us')} | {ratio} "
            f"| {taken[0]['first']:.1f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", default=WORK, choices=WORK)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--python", nargs="+", default=[], metavar="CONTENDER=PATH")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a contender's turn")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--one-core", action="store_true", help="bind all processes to one core")
    parser.add_argument("--work-for", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work_for:
        work_for(options.work_for)
        return
    if options.one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pythons = dict(text.split("=", 1) for text in options.python)
    started = [
        Contender.start(name, pythons.get(name, sys.executable)) for name in options.contenders
    ]
    contenders = [contender for contender in started if contender]
    import compile_work

    lines = [
        "| work | contender | median | best | unit | device / this | first call, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for work in options.work:
        samples = measure(contenders, work, options.rounds, options.seconds)
        lines += table(work, samples, options.clock, compile_work.TOKENS)
    for contender in contenders:
        contender.stop()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
