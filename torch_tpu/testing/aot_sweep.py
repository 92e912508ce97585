"""Compiles a folder of StableHLO programs for TPUs: ``python -m torch_tpu.testing.aot_sweep``.

The programs are those a run wrote with ``TORCH_TPU_DUMP_STABLEHLO=folder``. Each is compiled in a
worker process: the compiler may end its process on an internal error, or hang, and then the program
is noted as crashed and a new worker goes on. Results are lines of JSON, one for each program and
topology; a second run does only what is missing.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal

from torch_tpu.command_line import status_of

TOPOLOGIES = ("v5e:2x2", "tpu7x:2x2x1")
_WORKER = [sys.executable, "-m", "torch_tpu.testing.aot_sweep", "--worker"]
# The compiler keeps some of the memory it uses: 3 GB after 200 programs.
_PROGRAMS_PER_WORKER = 100
_LAST_WORDS = 2000  # characters of a crashed worker's stderr

Status = Literal["ok", "refused", "crashed", "timeout"]


@dataclass(frozen=True)
class Result:
    """What became of one program on one topology."""

    #: SHA-256 of the program's text.
    key: str
    topology: str
    #: The file's name, for people.
    file: str
    status: Status
    seconds: float
    #: The compiler's message; empty when it was content.
    message: str = ""
    peak_bytes: int = 0
    flops: float = 0.0
    estimated_seconds: float | None = None


def sweep(
    folder: Path,
    results: Path,
    *,
    topologies: Iterable[str] = TOPOLOGIES,
    timeout: float = 300.0,
    limit: int | None = None,
    without: str | None = None,
    quiet: bool = False,
) -> list[Result]:
    """Compiles what `results` does not have yet and returns the results of all programs.

    Args:
        folder: Where the programs (``*.mlir``) are, one in a file.
        results: The file of JSON lines; made when missing, else added to.
        topologies: What to compile each program for.
        timeout: Seconds after which a program counts as hanging.
        limit: How many compilations to do at most in this call.
        without: An element type, "f64" say; programs that have it are passed over.
        quiet: No progress on stderr.
    """
    topologies = tuple(topologies)
    programs = _programs(folder, without)
    known = read_results(results)
    missing = [
        (key, topology)
        for key in programs
        for topology in topologies
        if (key, topology) not in known
    ]
    done = _compile_all(missing[:limit], programs, timeout)
    with results.open("a", encoding="utf-8") as file:
        _end_line(results, file)
        for count, result in enumerate(done, 1):
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            known[result.key, result.topology] = result
            if not quiet:
                _show_progress(count, len(missing[:limit]), result)
    return [
        known[key, topology]
        for key in programs
        for topology in topologies
        if (key, topology) in known
    ]


def read_results(path: Path) -> dict[tuple[str, str], Result]:
    """Results by key and topology; a line that a killed run left unfinished is passed over."""
    found: dict[tuple[str, str], Result] = {}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            result = Result(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        found[result.key, result.topology] = result
    return found


def report(results: Iterable[Result]) -> str:
    """Counts and times by topology, and the messages of what did not compile."""
    by_topology: dict[str, list[Result]] = collections.defaultdict(list)
    for result in results:
        by_topology[result.topology].append(result)
    lines = []
    for topology, group in by_topology.items():
        good = [r for r in group if r.status == "ok"]
        seconds = sorted(r.seconds for r in group)
        lines.append(
            f"{topology}: {len(good)} of {len(group)} compile ({len(good) / len(group):.2%}); "
            f"seconds: median {seconds[len(seconds) // 2]:.2f}, longest {seconds[-1]:.1f}, "
            f"sum {sum(seconds):.0f}"
        )
        kinds: dict[tuple[str, str], list[Result]] = collections.defaultdict(list)
        for r in group:
            if r.status != "ok":
                kinds[r.status, _first_line(r.message)].append(r)
        for (status, message), same in sorted(kinds.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {len(same)} {status}, e.g. {same[0].file}: {message}")
    return "\n".join(lines)


def _programs(folder: Path, without: str | None) -> dict[str, Path]:
    """Each distinct program once, in the order of file names."""
    unwanted = None if without is None else re.compile(rf"[<x]{without}\b".encode())
    programs: dict[str, Path] = {}
    for path in sorted(folder.glob("*.mlir")):
        text = path.read_bytes()
        if unwanted is None or not unwanted.search(text):
            programs.setdefault(hashlib.sha256(text).hexdigest(), path)
    return programs


def _end_line(path: Path, file: IO[str]) -> None:
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        file.write("\n")


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")[:300]


def _show_progress(count: int, total: int, result: Result) -> None:
    if result.status == "ok" and count % 50 and count != total:
        return
    note = "" if result.status == "ok" else f": {_first_line(result.message)}"
    print(
        f"[{count}/{total}] {result.topology} {result.file} {result.status} "
        f"{result.seconds:.2f} s{note}",
        file=sys.stderr,
        flush=True,
    )


class _Worker:
    """A process that compiles one program after another."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._process = subprocess.Popen(
            _WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Not the device, only the compiler.
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def compile(self, key: str, path: Path, topology: str, timeout: float) -> Result:
        """The result; `alive` tells whether the worker can be asked again."""
        assert self._process.stdin is not None
        start = time.perf_counter()
        status: Status = "crashed"
        try:
            self._process.stdin.write(json.dumps([key, str(path), topology]) + "\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=timeout)
            if answer:
                return Result(**json.loads(answer))
            message = f"exit status {self._process.wait()}\n{self._last_words()}"
        except BrokenPipeError:
            message = f"exit status {self._process.wait()}\n{self._last_words()}"
        except queue.Empty:
            status, message = "timeout", f"no answer in {timeout:.0f} s"
        self.stop()
        return Result(key, topology, path.name, status, time.perf_counter() - start, message)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        # The reason of an abort stands before the stack trace.
        lines = [line for line in text.splitlines() if line.startswith("F") or "Check" in line]
        return ("\n".join(lines) or text)[:_LAST_WORDS]


def _compile_all(
    tasks: list[tuple[str, str]], programs: dict[str, Path], timeout: float
) -> Iterator[Result]:
    worker: _Worker | None = None
    try:
        for count, (key, topology) in enumerate(tasks):
            if worker is not None and worker.alive and count % _PROGRAMS_PER_WORKER == 0:
                worker.stop()
            if worker is None or not worker.alive:
                worker = _Worker()
            yield worker.compile(key, programs[key], topology, timeout)
    finally:
        if worker is not None and worker.alive:
            worker.stop()


def _compile_one(key: str, path: Path, topology: str) -> Result:
    from torch_tpu.aot import CompileError, compile_stablehlo

    start = time.perf_counter()
    try:
        program = compile_stablehlo(path.read_bytes(), topology)
    except CompileError as error:
        if error.path is not None:
            os.unlink(error.path)  # a copy of `path`
        message = str(error).partition("\n")[2]
        spent = time.perf_counter() - start
        return Result(key, topology, path.name, "refused", spent, message)
    return Result(
        key,
        topology,
        path.name,
        "ok",
        program.compile_seconds,
        peak_bytes=program.memory.peak or 0,
        flops=program.flops or 0.0,
        estimated_seconds=program.estimated_seconds,
    )


def _work() -> None:
    """The worker: a task in a line of stdin, its result in a line of stdout."""
    for line in sys.stdin:
        key, path, topology = json.loads(line)
        print(json.dumps(asdict(_compile_one(key, Path(path), topology))), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Compiles a folder and prints the counts; 1 when a program did not compile."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu.testing.aot_sweep", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, help="programs, *.mlir")
    parser.add_argument("results", nargs="?", type=Path, help="file of JSON lines to add to")
    parser.add_argument("--topology", action="append", help=f"default: {', '.join(TOPOLOGIES)}")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one program")
    parser.add_argument("--limit", type=int, help="compile at most so many now")
    parser.add_argument("--without", metavar="TYPE", help="no programs with this type, e.g. f64")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        _work()
        return 0
    if arguments.folder is None or arguments.results is None:
        parser.error("the following arguments are required: folder, results")
    return status_of(lambda: _sweep_and_report(arguments))


def _sweep_and_report(arguments: argparse.Namespace) -> int:
    if not any(arguments.folder.glob("*.mlir")):
        raise ValueError(
            f"{arguments.folder}: expected a folder of programs (*.mlir), such as a run with "
            "TORCH_TPU_DUMP_STABLEHLO writes; found none"
        )
    results = sweep(
        arguments.folder,
        arguments.results,
        topologies=arguments.topology or TOPOLOGIES,
        timeout=arguments.timeout,
        limit=arguments.limit,
        without=arguments.without,
    )
    print(report(results))
    return 0 if all(result.status == "ok" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
