"""What the package's commands have in common: how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def status_of(command: Callable[[], int]) -> int:
    """Runs a command and gives its exit status: 2, with the reason on stderr, if it cannot be done.

    No torch is imported here.
    """
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"error: {in_words(error)}", file=sys.stderr)
        return 2


def in_words(error: BaseException) -> str:
    """The message of an error; of a file that could not be used, its name and why."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return "\n".join([str(error), *getattr(error, "__notes__", ())])
