"""``python -m torch_tpu.aot FILE --topology v5e:2x2``: compiles a model or program for TPUs."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import zipfile
from pathlib import Path
from typing import Any

from torch_tpu import aot
from torch_tpu.aot._figures import peak_of, scaled
from torch_tpu.byte_sizes import in_bytes
from torch_tpu.command_line import in_words, status_of

_EPILOG = """FILE is one of
  a model saved by torch.export.save (.pt2),
  a StableHLO program, as text or bytecode (.mlir),
  a program that was compiled before (--output): its figures are printed again.

Exit status: 0 done, 1 the compiler refused the program, 2 it could not be done."""


def main(argv: list[str] | None = None) -> int:
    """Compiles the file and prints what the compiler says about it."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu.aot",
        description="Compiles a model or a StableHLO program for TPUs; none need be attached.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the model or program, see below")
    parser.add_argument(
        "--topology",
        default="v5e:2x2",
        help="a kind and number of TPUs, or 'device' for this machine's; default: %(default)s",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="copies of the program, each with data of its own; default: 1",
    )
    parser.add_argument(
        "--partitions",
        type=int,
        default=1,
        metavar="N",
        help="devices over which each is partitioned; default: 1",
    )
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        type=_flag,
        metavar="NAME=VALUE",
        help="a flag of XLA for this program; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--output", metavar="FILE", help="save the compiled program")
    parser.add_argument("--list", action="store_true", help="list the usual topologies and end")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(aot.topologies()))
        return 0
    if arguments.file is None:
        parser.error("the following arguments are required: FILE")
    return status_of(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    try:
        program = _program(arguments)
    except aot.CompileError as error:
        print(in_words(error), file=sys.stderr)
        return 1
    if arguments.output:
        program.save(arguments.output)
    if arguments.json:
        print(json.dumps(program.summary(), indent=2))
    else:
        _print_table(Path(arguments.file).name, program)
    return 0


def _program(arguments: argparse.Namespace) -> aot.CompiledProgram:
    path = Path(arguments.file)
    source: Any = path.read_bytes()
    if source.startswith(b"PK"):
        with _opened(path) as file:
            names = file.namelist()
        if "program.json" in names:
            return aot.CompiledProgram.load(path)
        source = _exported(path, names)
    elif not source.startswith(_BYTECODE) and b"func.func" not in source:
        raise _something_else(path, "an empty file" if not source else "something else")
    return aot.compile(
        source,
        arguments.topology,
        num_replicas=arguments.replicas,
        num_partitions=arguments.partitions,
        flags=dict(arguments.flag),
    )


# How MLIR's bytecode begins.
_BYTECODE = b"ML\xefR"


def _something_else(path: Path, found: str) -> ValueError:
    return ValueError(
        f"[aot] {path}: expected a StableHLO program (text or bytecode), a model saved by "
        f"torch.export.save or a program saved by --output, got {found}"
    )


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise _something_else(path, "a damaged archive") from None


def _exported(path: Path, names: list[str]) -> Any:
    """A model that torch.export.save wrote."""
    import torch

    if not any(
        name.endswith(("archive_format", "serialized_exported_program.json")) for name in names
    ):
        raise _something_else(path, "another archive")
    logging.disable(logging.WARNING)  # torch.export prints the traceback of what is raised here
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ValueError(
            f"[aot] {path}: torch.export.load cannot read it: it is damaged, or another version of "
            f"PyTorch wrote it; this is {torch.__version__}"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _flag(text: str) -> tuple[str, bool | int | float | str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    if value in ("true", "false"):
        return name, value == "true"
    for convert in (int, float):
        try:
            return name, convert(value)
        except ValueError:
            continue
    return name, value


def _print_table(name: str, program: aot.CompiledProgram) -> None:
    rows = _rows(program)
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:  # the table is then plain
        print(f"{name} for {program.topology.name}")
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            print(f"  {label:<{width}}  {value}")
        return
    table = Table(title=f"{name} for {program.topology.name}", show_header=False)
    table.add_column(style="cyan")
    table.add_column(justify="right")
    for label, value in rows:
        table.add_row(label, value)
    Console().print(table)


def _rows(program: aot.CompiledProgram) -> list[tuple[str, str]]:
    memory, topology = program.memory, program.topology
    rows = [
        ("device", f"{topology.num_devices} x {topology.device_kind}"),
        ("peak memory", peak_of(memory.peak, topology.device_memory)),
        ("arguments", in_bytes(memory.arguments)),
        ("outputs", in_bytes(memory.outputs)),
        ("  in the arguments' memory", in_bytes(memory.aliased)),
        ("temporaries", in_bytes(memory.temporaries)),
        ("generated code", in_bytes(memory.generated_code)),
        ("floating-point operations", scaled(program.flops, "FLOP")),
        ("bytes accessed", in_bytes(program.bytes_accessed)),
        ("estimated time", scaled(program.estimated_seconds, "s")),
        ("compiled in", f"{program.compile_seconds:.2f} s"),
    ]
    if program.parts_without_estimate:
        rows.insert(-1, ("  of the parts that have one", scaled(program.partial_seconds, "s")))
    rows += [(f"no {figure}", reason) for figure, reason in program.unknown.items()]
    return rows


if __name__ == "__main__":
    sys.exit(main())
