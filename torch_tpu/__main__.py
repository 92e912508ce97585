"""The command line: ``python -m torch_tpu``. Each command is a module with `add_to` and `run`."""

from __future__ import annotations

import argparse
import os
import sys

from torch_tpu import __version__, cache_command

_COMMANDS = (cache_command,)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu",
        description="Tools of torch_tpu, the PyTorch device for TPUs.",
        epilog="See also: python -m torch_tpu.aot --help (compiling for TPUs without one), "
        "python -m torch_tpu.testing --help (PyTorch's conformance data).",
    )
    parser.add_argument("--version", action="version", version=f"torch_tpu {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done, 1: it found problems, 2: it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
