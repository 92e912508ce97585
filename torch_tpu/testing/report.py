"""What a result file says, in tables for a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from torch_tpu.testing.cases import Result

_COLUMNS = ("pass", "fail", "crash", "timeout", "excluded", "not applicable")


def summary(found: Iterable[Result]) -> str:
    """Cases by suite, variant and dtype."""
    rows: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for result in found:
        row = rows[(result.case.suite, result.case.variant, result.case.dtype)]
        row[result.status] += 1
        row["samples"] += result.samples
        row["failed samples"] += result.failed
        row["with fallback"] += bool(result.fallbacks)
    header = ["suite", "variant", "dtype", *_COLUMNS, "samples", "failed samples", "with fallback"]
    lines = [[*key, *(str(row[name]) for name in header[3:])] for key, row in rows.items()]
    return table([header, *lines])


def table(rows: list[list[str]]) -> str:
    """Rows in columns: the first three to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def failures(found: Iterable[Result]) -> str:
    """Each case that did not pass, with the first sample that failed."""
    lines = []
    for result in found:
        if result.status not in ("fail", "crash", "timeout"):
            continue
        count = f"{result.failed}/{result.samples}" if result.samples else result.status
        lines.append(f"{result.case.key} ({count}) {result.reason}".rstrip())
        lines += [f"    {f.kind}: {f.text}\n        {f.sample}" for f in result.failures]
    return "\n".join(lines)


def fallbacks(found: Iterable[Result]) -> str:
    """Operators that ran on the CPU instead, with the cases that called them."""
    users: dict[str, set[str]] = defaultdict(set)
    for result in found:
        for name in result.fallbacks:
            users[name].add(result.case.op)
    return "\n".join(
        f"{name}: {', '.join(sorted(ops))}"
        for name, ops in sorted(users.items(), key=lambda item: (-len(item[1]), item[0]))
    )
