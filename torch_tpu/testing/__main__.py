"""Command line of the conformance run."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from torch_tpu.command_line import status_of
from torch_tpu.testing import report, results
from torch_tpu.testing.cases import DTYPES, Case, Options, Result, Status, matches


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _patterns(text: str) -> list[str]:
    for pattern in _words(text):
        try:
            re.compile(pattern)
        except re.error as error:
            raise argparse.ArgumentTypeError(
                f"expected regular expressions, got {pattern!r}: {error}"
            ) from None
    return _words(text)


def _words_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Takes words that are all among these."""
    words = tuple(known)

    def parse(text: str) -> list[str]:
        for word in _words(text):
            if word not in words:
                raise argparse.ArgumentTypeError(
                    f"expected some of {', '.join(words)}, got {word!r}"
                )
        return _words(text)

    return parse


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N, from 1/N to N/N, got {text!r}")
    return int(match[1]), int(match[2])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(
        prog="python -m torch_tpu.testing", description="PyTorch's conformance data on the device."
    )
    commands = main.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run cases that the result file does not have yet")
    run.add_argument("--suites", type=_words, default=[], help="default: all")
    run.add_argument("--ops", type=_patterns, default=[], help="regular expressions of whole names")
    run.add_argument("--variants", type=_words, default=[], help="default: all")
    run.add_argument(
        "--dtypes", type=_words_of(DTYPES), default=[], help="default: those of each suite"
    )
    run.add_argument("--samples", type=int, default=0, help="most samples per case; 0: all")
    run.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="1/N to N/N")
    run.add_argument("--timeout", type=float, default=300.0, help="seconds per case")
    run.add_argument(
        "--again",
        type=_words_of((*get_args(Status), "fallback", "all")),
        default=[],
        metavar="STATUS",
        help="repeat cases that came to this: fail, crash, timeout, fallback or all",
    )
    run.add_argument("--only-again", action="store_true", help="nothing that was not run before")
    run.add_argument("--device", default="tpu", help="the device to compare with the CPU")
    for command in (
        run,
        commands.add_parser("report", help="print what a result file says"),
        commands.add_parser("table", help="write the table of supported operators"),
    ):
        command.add_argument("--results", type=Path, nargs="+", default=[Path("conformance.jsonl")])
    reporting = commands.choices["report"]
    reporting.add_argument("--failures", action="store_true", help="list what failed")
    reporting.add_argument("--fallbacks", action="store_true", help="list what ran on the CPU")
    for name in ("suites", "ops", "variants", "dtypes"):
        kind = _patterns if name == "ops" else _words
        reporting.add_argument(f"--{name}", type=kind, default=[], help="default: all")
    writing = commands.choices["table"]
    writing.add_argument("--output", type=Path, default=Path("docs/op_support.md"))
    writing.add_argument("--programs", type=Path, help="results of compiling for TPUs")
    return main


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    return (
        (not options.suites or case.suite in options.suites)
        and (not options.variants or case.variant in options.variants)
        and (not options.dtypes or case.dtype in options.dtypes)
        and matches(case.op, options.ops)
    )


def run(options: argparse.Namespace) -> int:
    """Runs what is not done; the status is 0 if everything passed."""
    from tqdm import tqdm

    from torch_tpu.testing.runner import Worker
    from torch_tpu.testing.suites import SUITES

    path = options.results[0]
    done = results.read([path])
    index, count = options.shard
    cases = [c for all_cases, _ in SUITES.values() for c in all_cases() if _wanted(c, options)]
    if not cases:
        raise ValueError(
            f"no case has what is asked for; the suites are {', '.join(SUITES)}, and the variants "
            "and dtypes those of each"
        )
    cases = cases[index - 1 :: count]

    def repeat(case: Case) -> bool:
        result = done.get(case.key)
        if result is None:
            return not options.only_again
        return (
            result.status in options.again
            or "all" in options.again
            or ("fallback" in options.again and bool(result.fallbacks))
        )

    found = {case.key: done[case.key] for case in cases if case.key in done and not repeat(case)}
    todo = [case for case in cases if repeat(case)]
    settings = Options(device=options.device, samples=options.samples)
    bad = 0
    with Worker(settings, options.timeout) as worker, tqdm(todo, unit="case") as progress:
        for case in progress:
            progress.set_postfix_str(f"{bad} failed, {case.key}")
            result = worker.run(case)
            bad += result.status in ("fail", "crash", "timeout")
            results.append(path, result)
            found[case.key] = result
    print(report.summary(found.values()))
    return int(any(r.status in ("fail", "crash", "timeout") for r in found.values()))


def show(options: argparse.Namespace) -> int:
    """Prints a report."""
    found = [r for r in _results(options).values() if _wanted(r.case, options)]
    print(report.summary(found))
    if options.failures:
        print("\n" + report.failures(found))
    if options.fallbacks:
        print("\n" + report.fallbacks(found))
    return 0


def write_table(options: argparse.Namespace) -> int:
    """Writes the table of what is supported."""
    from torch_tpu.testing import support_table

    _results(options)
    support_table.write(options.results, options.output, options.programs)
    return 0


def _results(options: argparse.Namespace) -> dict[str, Result]:
    """What the files say, each of which must be there."""
    for path in options.results:
        path.open().close()
    found = results.read(options.results)
    if not found:
        names = ", ".join(map(str, options.results))
        raise ValueError(f"{names}: expected results that `run` wrote, found none")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Runs the command: 0 done and all is well, 1 something failed, 2 it could not be done."""
    options = parser().parse_args(arguments)
    command = {"run": run, "report": show, "table": write_table}[options.command]
    return status_of(lambda: command(options))


if __name__ == "__main__":
    sys.exit(main())
