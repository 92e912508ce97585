"""The command line: ``python -m torch_tpu``. Each command is a module with `add_to` and `run`."""

from __future__ import annotations

import argparse
import importlib
import sys

from torch_tpu import __version__, cache_command
from torch_tpu.command_line import status_of

_COMMANDS = (cache_command,)
# These have command lines of their own, and import torch.
_MODULES = {
    "aot": "compile a model or program for TPUs without one (also: python -m torch_tpu.aot)",
    "testing": "run PyTorch's conformance data (also: python -m torch_tpu.testing)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu",
        description="Tools of torch_tpu, the PyTorch device for TPUs.",
        epilog="COMMAND --help says more about each.",
    )
    parser.add_argument("--version", action="version", version=f"torch_tpu {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    for name, text in _MODULES.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done, 1: it found problems, 2: it could not be done."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in _MODULES:
        module = importlib.import_module(f"torch_tpu.{arguments[0]}.__main__")
        status: int = module.main(arguments[1:])
        return status
    options = _parser().parse_args(arguments)
    return status_of(lambda: options.run(options))


if __name__ == "__main__":
    sys.exit(main())
