"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: Path, mode: int) -> Iterator[BinaryIO]:
    """A new file beside `target`, with these permissions, which takes its place at the end.

    What goes wrong leaves `target` as it was and nothing beside it. An OSError of the system names
    `target`, the file that was asked for.
    """
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(temporary, target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(target)) from None
    finally:
        temporary.unlink(missing_ok=True)
