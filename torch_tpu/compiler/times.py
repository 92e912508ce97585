"""How long the stages of compiling took that are Python's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of a stage, from all threads. A stage inside of itself counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = threading.local()
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Adds the time that the block takes."""
        depth: int = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._depth.value = depth
            if depth == 0:
                spent = time.perf_counter() - begin
                with self._lock:
                    self.seconds += spent


AOT = Stopwatch()
"""AOTAutograd: from a Dynamo graph to the graphs of forward and backward."""
LOWERING = Stopwatch()
"""From a graph of operators to a program's text."""
