"""Command line of the conformance run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torch_tpu.testing import report, results
from torch_tpu.testing.cases import Case, Options, matches


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    return int(index), int(count)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m torch_tpu.testing", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run cases that the result file does not have yet")
    run.add_argument("--suites", type=_words, default=[], help="default: all")
    run.add_argument("--ops", type=_words, default=[], help="regular expressions of whole names")
    run.add_argument("--variants", type=_words, default=[], help="default: all")
    run.add_argument("--dtypes", type=_words, default=[], help="default: those of each suite")
    run.add_argument("--samples", type=int, default=0, help="most samples per case; 0: all")
    run.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="1/N to N/N")
    run.add_argument("--timeout", type=float, default=300.0, help="seconds per case")
    run.add_argument(
        "--again",
        type=_words,
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
        reporting.add_argument(f"--{name}", type=_words, default=[])
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
    found = [r for r in results.read(options.results).values() if _wanted(r.case, options)]
    print(report.summary(found))
    if options.failures:
        print("\n" + report.failures(found))
    if options.fallbacks:
        print("\n" + report.fallbacks(found))
    return 0


def main() -> int:
    """Runs the command."""
    options = parser().parse_args()
    if options.command == "run":
        return run(options)
    if options.command == "report":
        return show(options)
    from torch_tpu.testing import support_table

    support_table.write(options.results, options.output, options.programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
