"""Writes docs/op_support.md from result files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

import torch_tpu
from torch_tpu.testing import databases, exceptions, results, suites
from torch_tpu.testing.cases import Result

# Columns of the operators' table: what they are called, and the cases that belong to them.
_DTYPE_GROUPS = {
    "float32": ("float32",),
    "halves": ("bfloat16", "float16"),
    "float64": ("float64",),
    "integers": ("int64", "int32", "uint8"),
    "bool": ("bool",),
    "complex64": ("complex64",),
    "float8": ("float8_e4m3fn", "float8_e5m2"),
}
_OTHER_SUITES = {
    "foreach": "Lists of tensors",
    "modules": "Modules",
    "optimizers": "Optimizers",
}
_NOT_WAITING = "a call does not wait for values, as on CUDA"
_BAD = ("fail", "crash", "timeout")


def _forward(dtypes: tuple[str, ...]) -> Callable[[Result], bool]:
    return lambda r: r.case.suite == "forward" and r.case.dtype in dtypes


def _gradients(variants: tuple[str, ...]) -> Callable[[Result], bool]:
    return lambda r: r.case.suite == "gradients" and r.case.variant in variants


_COLUMNS: dict[str, Callable[[Result], bool]] = {
    **{name: _forward(dtypes) for name, dtypes in _DTYPE_GROUPS.items()},
    "backward": _gradients(("backward", "inplace")),
    "twice": _gradients(("gradgrad",)),
    "variants": lambda r: r.case.suite == "variants",
    "errors": lambda r: r.case.suite == "errors",
    "compiled": lambda r: r.case.suite == "compile",
}

_LEGEND = """\
A row is an entry of PyTorch's operator database. Its sample inputs are run on the device and on the
CPU, and results are compared with `torch.testing`'s tolerances; the columns are

- a dtype, or a group of them: halves are bfloat16 and float16, integers int64, int32 and uint8,
  float8 e4m3fn and e5m2;
- **backward**: gradients of float32 and complex64 inputs, and of in-place variants; **twice**:
  those of the gradients;
- **variants**: as a method, in place and with `out=`; with inputs that are non-contiguous,
  transposed, expanded, empty and without dimensions;
- **errors**: calls that must fail, with the CPU's type of exception and its message, or one that
  PyTorch's database accepts;
- **compiled**: through `torch.compile`;
- **on the CPU**: the operators the CPU computed instead, where there are any;
- **TPU**: whether the programs that were tried compile for TPUs ahead of time.

A cell says `yes` when every sample that was run does what the CPU does, else how many of them fail.
It is empty where PyTorch's CPU has nothing to compare with, and `-` where a case is left out for
the reason listed at the end. The totals say how many samples the databases have beyond those that
were run."""


def _cell(found: list[Result]) -> str:
    if not found:
        return ""
    bad = [r for r in found if r.status in _BAD]
    if bad:
        lost = [r.status for r in bad if r.status != "fail"]
        if lost:
            return lost[0]
        return f"{sum(r.failed for r in bad)} of {sum(r.samples for r in found)} fail"
    if any(r.status == "pass" for r in found):
        return "yes"
    return "-" if any(r.status == "excluded" for r in found) else ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]


def _compiles(found: list[Result], compiled: dict[str, bool]) -> str:
    known = [compiled[name] for r in found for name in r.dumped if name in compiled]
    if not known:
        return ""
    return "yes" if all(known) else f"{len(known) - sum(known)} of {len(known)} do not"


def _totals(found: list[Result]) -> list[str]:
    by_suite: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for r in found:
        counts = by_suite[(r.case.suite, r.case.variant, r.case.dtype)]
        counts[r.status] += 1
        counts["samples"] += r.samples
        counts["left out"] += r.left_out
        counts["fallback"] += bool(r.fallbacks)
    rows = [
        [
            *key,
            str(n["pass"]),
            str(sum(n[status] for status in _BAD)),
            str(n["excluded"]),
            str(n["samples"]),
            str(n["left out"]),
            str(n["fallback"]),
        ]
        for key, n in by_suite.items()
    ]
    header = ["suite", "variant", "dtype", "pass", "fail", "left out"]
    return _table([*header, "samples", "not run", "use the CPU"], rows)


def _headline(by_operator: dict[str, list[Result]]) -> list[str]:
    def count(*suites: str) -> tuple[int, int]:
        relevant = {
            name: [r for r in found if r.case.suite in suites]
            for name, found in by_operator.items()
        }
        tried = {
            name: found
            for name, found in relevant.items()
            if any(r.status != "not applicable" for r in found)
        }
        good = [
            name
            for name, found in tried.items()
            if any(r.status == "pass" for r in found) and not any(r.status in _BAD for r in found)
        ]
        return len(good), len(tried)

    lines = []
    for said, of_suites in (
        ("that the CPU has do what it does with all dtypes, forward", ("forward",)),
        ("have the CPU's gradients", ("gradients",)),
        ("do what it does when called otherwise", ("variants",)),
        ("refuse wrong calls as the CPU does", ("errors",)),
        ("do what the CPU does through torch.compile", ("compile",)),
    ):
        good, all_of_them = count(*of_suites)
        if all_of_them:
            lines.append(f"- {good} of {all_of_them} operators {said}.")
    forward = {n: [r for r in f if r.case.suite == "forward"] for n, f in by_operator.items()}
    used = [n for n, f in forward.items() if any(r.fallbacks for r in f)]
    tried = [n for n, f in forward.items() if any(r.samples for r in f)]
    lines.append(f"- {len(tried) - len(used)} of {len(tried)} never use the CPU, forward.")
    foreign = [
        name
        for name in databases.operators()
        if all(r.status == "not applicable" for r in forward.get(name, ()))
    ]
    if foreign:
        lines.append(
            f"- {len(foreign)} entries of the database have nothing to compare with on the CPU: "
            f"{', '.join(foreign)}."
        )
    return lines


def text(found: list[Result], compiled: dict[str, bool]) -> str:
    """The document."""
    by_operator: dict[str, list[Result]] = defaultdict(list)
    others: dict[str, dict[str, list[Result]]] = {suite: {} for suite in _OTHER_SUITES}
    for r in found:
        if r.case.suite in others:
            others[r.case.suite].setdefault(r.case.op, []).append(r)
        else:
            by_operator[r.case.op].append(r)
    order = [name for name in databases.operators() if name in by_operator]
    lines = [
        "# Operator support",
        "",
        "Written by `python -m torch_tpu.testing table` from a conformance run, never by hand.",
        f"PyTorch {torch.__version__.partition('+')[0]}, torch_tpu {torch_tpu.__version__}.",
        "",
        *_headline(by_operator),
        "",
        "## Totals",
        *_totals(found),
        "",
        "## Operators",
        _LEGEND,
        "",
    ]
    rows = []
    for name in order:
        mine = by_operator[name]
        used = sorted({op.removeprefix("aten::") for r in mine for op in r.fallbacks})
        cells = [_cell([r for r in mine if belongs(r)]) for belongs in _COLUMNS.values()]
        note = " (random)" if name in exceptions.RANDOM else ""
        rows.append([f"{name}{note}", *cells, ", ".join(used), _compiles(mine, compiled)])
    lines += _table(["operator", *_COLUMNS, "on the CPU", "TPU"], rows)
    for suite, title in _OTHER_SUITES.items():
        entries = others[suite]
        if not entries:
            continue
        variants = list(dict.fromkeys(r.case.variant for f in entries.values() for r in f))
        lines += ["", f"## {title}"]
        lines += _table(
            ["name", *variants],
            [
                [name, *(_cell([r for r in f if r.case.variant == v]) for v in variants)]
                for name, f in sorted(entries.items())
            ],
        )
    lines += ["", "## What is compared otherwise", *_exceptions()]
    return "\n".join(lines) + "\n"


def _exceptions() -> list[str]:
    rows = []
    for (suite, op, dtype), reason in exceptions.EXCLUDED.items():
        rows.append([op, f"{suite or 'everywhere'}, {dtype or 'every dtype'}", "left out", reason])
    for (suite, op, wide_dtype), wider in exceptions.WIDER.items():
        where = f"{suite or 'everywhere'}, {str(wide_dtype).removeprefix('torch.')}"
        rows.append([op, where, f"rtol {wider.rtol:g}, atol {wider.atol:g}", wider.reason])
    for op, error in exceptions.UNCHECKED.items():
        rows.append([op, "errors", f'no "{error.replace("|", " or ")}"', _NOT_WAITING])
    for op, message in exceptions.OWN_WORDS.items():
        rows.append([op, "errors", f'says "{message}"', "the words of PyTorch's meta kernel"])
    for names, how in (
        (exceptions.RANDOM, "shapes and dtypes only, where the CPU's own values change"),
        (
            {op: reason for op, (_, reason) in exceptions.CHOOSES.items()},
            "an index counts as the element it names",
        ),
        (exceptions.STATISTICS, "dtype of the statistics"),
        (exceptions.FUSED_ATTENTION, "twice differentiated with SDPBackend.MATH"),
        (
            {op.replace("|", " or "): why for op, why in exceptions.NOT_EXPANDED.items()},
            "not called with expanded inputs",
        ),
        (exceptions.CONTIGUOUS_INTEGERS, "integer arguments stay contiguous"),
        (exceptions.NO_SIGN, "absolute values, with `out=`"),
        (exceptions.HOST_ARGUMENTS, "arguments stay on the CPU"),
        (
            exceptions.SUMMED_IN_FLOAT32,
            'halves, with acc_dtype=torch.float32 and acc_policy="accurate"',
        ),
    ):
        rows += [[op, "", how, reason] for op, reason in names.items()]
    return _table(["operator", "where", "how", "why"], rows)


def _read_compiled(path: Path | None) -> dict[str, bool]:
    """Whether each program compiled on every topology, by its file's name."""
    if path is None:
        return {}
    from torch_tpu.testing import aot_sweep

    compiled: dict[str, bool] = {}
    for result in aot_sweep.read_results(path).values():
        compiled[result.file] = compiled.get(result.file, True) and result.status == "ok"
    return compiled


def write(paths: list[Path], output: Path, programs: Path | None) -> None:
    """Writes the document from result files, and from one of aot_sweep where there is one."""
    read = results.read(paths)
    known = [case.key for cases, _ in suites.SUITES.values() for case in cases()]
    # In the suites' order. A file may hold results of cases there were once, too.
    found = [read[key] for key in known if key in read]
    output.write_text(text(found, _read_compiled(programs)))
    print(f"{output}: {len(found)} cases")
