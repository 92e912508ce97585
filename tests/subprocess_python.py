"""Runs Python code in a process of its own, where the environment decides about the device."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(code: str, *, timeout: float = 300, **environment: str) -> str:
    """Runs `code` with additional environment variables and returns what it printed."""
    return outputs(code, timeout=timeout, **environment)[0]


def outputs(code: str, *, timeout: float = 300, **environment: str) -> tuple[str, str]:
    """Like `run`, and also returns what was written to stderr."""
    done = _run(code, timeout, environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def run_quietly(code: str, *, timeout: float = 300, **environment: str) -> str:
    """Like `run`, and nothing may be written to stderr."""
    done = _run(code, timeout, environment)
    assert done.returncode == 0 and not done.stderr, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_failing(code: str, *, timeout: float = 300, **environment: str) -> str:
    """Runs `code`, which has to end with an exception, and returns the traceback."""
    done = _run(code, timeout, environment)
    assert done.returncode == 1, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr


def _run(
    code: str, timeout: float, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
