"""Result files: one JSON object a line, the last line of a case counts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from torch_tpu.testing.cases import Case, Failure, Result


def to_json(result: Result) -> str:
    """A result as a line."""
    fields = dataclasses.asdict(result)
    case = fields.pop("case")
    kept = {name: value for name, value in fields.items() if value or name == "status"}
    return json.dumps({**case, **kept}, separators=(",", ":"))


def from_json(line: str) -> Result:
    """The result a line holds."""
    fields: dict[str, Any] = json.loads(line)
    case = Case(*(fields.pop(name) for name in ("suite", "op", "variant", "dtype")))
    failures = [Failure(**failure) for failure in fields.pop("failures", [])]
    return Result(case, failures=failures, **fields)


def read(paths: list[Path]) -> dict[str, Result]:
    """Results by the key of their case, of all files."""
    found: dict[str, Result] = {}
    for path in paths:
        if not path.exists():
            continue
        for line in path.read_text().splitlines():
            try:
                result = from_json(line)
            except (json.JSONDecodeError, KeyError):
                continue  # a line cut short when a run was interrupted
            before = found.pop(result.case.key, None)
            if before is not None:
                result.dumped = sorted({*before.dumped, *result.dumped})
            found[result.case.key] = result
    return found


def append(path: Path, result: Result) -> None:
    """Adds a result to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(to_json(result) + "\n")
