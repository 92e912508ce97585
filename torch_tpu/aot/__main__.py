"""``python -m torch_tpu.aot FILE.mlir --topology v5e:2x2``: compiles a StableHLO file for TPUs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from torch_tpu import aot


def main(argv: list[str] | None = None) -> int:
    """Compiles the file and prints what the compiler says about it."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu.aot",
        description="Compiles a StableHLO program for TPUs; none need be attached.",
    )
    parser.add_argument("file", nargs="?", help="the program, as text or bytecode")
    parser.add_argument("--topology", default="v5e:2x2", help="default: %(default)s")
    parser.add_argument("--replicas", type=int, default=1, metavar="N")
    parser.add_argument("--partitions", type=int, default=1, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--output", metavar="FILE", help="save the compiled program")
    parser.add_argument("--list", action="store_true", help="list the usual topologies and end")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(aot.topologies()))
        return 0
    if arguments.file is None:
        parser.error("the following arguments are required: file")
    try:
        program = aot.compile_stablehlo(
            Path(arguments.file).read_bytes(),
            arguments.topology,
            num_replicas=arguments.replicas,
            num_partitions=arguments.partitions,
        )
        if arguments.output:
            program.save(arguments.output)
    except (aot.CompileError, ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(program.summary(), indent=2))
    else:
        _print_table(Path(arguments.file).name, program)
    return 0


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
    seconds = program.estimated_seconds
    peak = _bytes(memory.peak)
    if topology.device_memory:
        peak += f" of {_bytes(topology.device_memory)} ({memory.peak / topology.device_memory:.1%})"
    return [
        ("device", f"{topology.num_devices} x {topology.device_kind}"),
        ("peak memory", peak),
        ("arguments", _bytes(memory.arguments)),
        ("outputs", _bytes(memory.outputs)),
        ("  in the arguments' memory", _bytes(memory.aliased)),
        ("temporaries", _bytes(memory.temporaries)),
        ("generated code", _bytes(memory.generated_code)),
        ("floating-point operations", _scaled(program.flops, "FLOP")),
        ("bytes accessed", _bytes(program.bytes_accessed)),
        ("estimated time", "not estimated" if seconds is None else _scaled(seconds, "s")),
        ("compiled in", f"{program.compile_seconds:.2f} s"),
    ]


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _scaled(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "µ")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}" if value else f"0 {unit}"


if __name__ == "__main__":
    sys.exit(main())
