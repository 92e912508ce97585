"""The process that runs cases: reads them from its input, a JSON object a line, and answers so."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings

import torch

from torch_tpu.testing import results, suites
from torch_tpu.testing.cases import Case, Options, Result
from torch_tpu.testing.operator_calls import error_text


def dumped_programs() -> set[str]:
    """The files of programs the device has written so far, if it was asked to."""
    folder = os.environ.get("TORCH_TPU_DUMP_STABLEHLO")
    return set(os.listdir(folder)) if folder and os.path.isdir(folder) else set()


def run_case(case: Case, options: Options) -> Result:
    """Runs a case and adds what the device did meanwhile."""
    tpu = torch.tpu  # type: ignore[attr-defined]
    measured = options.device == "tpu"
    before = tpu.dispatch_stats() if measured else None
    files = dumped_programs()
    start = time.perf_counter()
    try:
        result = suites.SUITES[case.suite][1](case, options)
    except Exception as error:
        result = Result(case, "fail", failed=1, reason=f"the case itself: {error_text(error)}")
    result.dumped = sorted(dumped_programs() - files)
    result.seconds = round(time.perf_counter() - start, 3)
    if before is not None:
        after = tpu.dispatch_stats()
        counts = {
            name: count - before["fallbacks"].get(name, 0)
            for name, count in after["fallbacks"].items()
        }
        result.fallbacks = {name: count for name, count in counts.items() if count}
        result.programs = after["compiles"] + after["loads"] - before["compiles"] - before["loads"]
    return result


def main() -> None:
    """Answers until the input ends."""
    # Operators and libraries may print; answers go where only they go.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    # Products like the CPU's, not what a TPU takes them for by default.
    torch.set_float32_matmul_precision("highest")
    options = Options(**json.loads(sys.argv[1]))
    if options.device == "tpu":
        torch.tpu.set_fallback("silent")  # type: ignore[attr-defined]
    answers.write("ready\n")
    for line in sys.stdin:
        case = Case(**json.loads(line))
        answers.write(results.to_json(run_case(case, options)) + "\n")


if __name__ == "__main__":
    main()
