"""Runs cases in a worker process that is replaced when a case crashes or takes too long."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import selectors
import subprocess
import sys
import time
from types import TracebackType
from typing import IO

from torch_tpu.testing import exceptions, results
from torch_tpu.testing.cases import Case, Options, Result

_START_LIMIT = 300.0


class Worker:
    """A worker process. Started when the first case comes, and again after it was lost."""

    def __init__(self, options: Options, limit: float) -> None:
        self._options = options
        self.limit = limit  # seconds per case
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def process_id(self) -> int | None:
        """The process that runs cases now, if there is one."""
        return None if self._process is None else self._process.pid

    def run(self, case: Case) -> Result:
        """Runs a case; a lost worker is its result, too."""
        reason = exceptions.reason_excluded(case.suite, case.op, case.variant, case.dtype)
        if reason is not None:
            return Result(case, "excluded", reason=reason)
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        start = time.monotonic()
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
            self._process.stdin.flush()
            line = self._answer(self.limit)
        except BrokenPipeError:
            line = ""
        except TimeoutError:
            self._stop()
            return Result(case, "timeout", failed=1, reason=f"longer than {self.limit:g} s")
        if line:
            return results.from_json(line)
        code = self._stop()
        return Result(
            case,
            "crash",
            failed=1,
            seconds=round(time.monotonic() - start, 3),
            reason=f"the process ended with status {code}",
        )

    def _start(self) -> None:
        settings = json.dumps(dataclasses.asdict(self._options))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu.testing.worker", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer(_START_LIMIT).strip() != "ready":
            code = self._stop()
            raise RuntimeError(f"the worker process did not start: it ended with status {code}")

    def _answer(self, limit: float) -> str:
        """The next line the worker writes; "" when it has ended."""
        assert self._process is not None and self._process.stdout is not None
        stream: IO[str] = self._process.stdout
        # The worker writes one line at a time and is asked for one at a time: no line waits in a
        # buffer of this process while its pipe is empty.
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(limit):
                raise TimeoutError
        return stream.readline()

    def _stop(self) -> int | None:
        if self._process is None:
            return None
        process, self._process = self._process, None
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            return process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
