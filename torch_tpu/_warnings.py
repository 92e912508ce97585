"""The warnings of this package, as categories a filter can name, and where they point to."""

from __future__ import annotations

import os
import re
import sys
import warnings
from types import FrameType


class PerformanceWarning(UserWarning):
    """Something works, but is slower than it need be."""


_FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


def warn_at_user_line(
    message: str, category: type[Warning] = PerformanceWarning, trace: str | None = None
) -> None:
    """Warns at a line of the user's, not at one of PyTorch's or of this package.

    It is the innermost such line of ``trace``, the stack in text that a graph's node comes with; or
    where there is none, of the calls that are running.
    """
    lines = [(m["file"], int(m["line"])) for m in _FRAME.finditer(trace or "")]
    for file, line in reversed(lines):
        if _is_users(file):
            warnings.warn_explicit(message, category, file, line)
            return
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    # On a thread of autograd there is no line of the user's: then the caller's will do.
    warnings.warn(message, category, stacklevel=level if frame is not None else 2)


def _is_users(file: str) -> bool:
    inner = [os.path.dirname(__file__)]
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__ is not None:
        inner.append(os.path.dirname(torch.__file__))
    # Code that was made at run time, such as a graph's, is in files such as "<eval_with_key>.3".
    return not file.startswith(("<eval_with_key>", *(folder + os.sep for folder in inner)))
