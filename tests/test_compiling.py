"""Compiling itself: once however many ask, and shown on a terminal when it takes long."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import subprocess_python

ALONE: dict[str, Any] = {
    "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
    "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "disabled",
}


def test_threads_that_ask_at_once_share_one_compile() -> None:
    subprocess_python.run(
        """
        import threading, torch
        x = torch.ones(7, 5, device="tpu")
        torch.tpu.synchronize()
        before = torch.tpu.dispatch_stats()["compiles"]
        barrier = threading.Barrier(8)
        results = []
        def work():
            barrier.wait()
            results.append(torch.cumsum(x, 0).cpu())
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert torch.tpu.dispatch_stats()["compiles"] - before == 1
        assert all(torch.equal(r, torch.ones(7, 5).cumsum(0)) for r in results)
        """,
        **ALONE,
    )


def on_a_terminal(seconds: str) -> str:
    """What a process that compiles shows on its terminal."""
    code = "import torch; torch.linalg.svdvals(torch.eye(9, device='tpu')).cpu()"
    terminal, stderr = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        # The line of a fused program is cut off after the names of its operators.
        env={
            **os.environ,
            **ALONE,
            "TORCH_TPU_COMPILE_PROGRESS": seconds,
            "TORCH_TPU_DEFER_AND_FUSE": "0",
        },
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    ) as process:
        os.close(stderr)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(terminal)
    assert process.returncode == 0, shown
    return shown.decode()


def test_a_long_compile_is_shown() -> None:
    shown = on_a_terminal("0")
    assert "torch_tpu: compiling aten::" in shown
    assert "operations" in shown
    assert shown.endswith("\033[K"), "the line is wiped in the end"


@pytest.mark.parametrize("seconds", ["600", "off"])
def test_a_short_one_is_not(seconds: str) -> None:
    assert on_a_terminal(seconds) == ""


def test_nothing_is_shown_where_there_is_no_terminal(tmp_path: Path) -> None:
    subprocess_python.run_quietly(
        "import torch; print(torch.ones(3, device='tpu').cumsum(0).tolist())",
        TORCH_TPU_COMPILE_PROGRESS="0",
        **ALONE,
    )


def test_a_wrong_number_of_seconds() -> None:
    errors = subprocess_python.run_failing(
        "import torch; torch.ones(3, device='tpu').cumsum(0).cpu()",
        TORCH_TPU_COMPILE_PROGRESS="soon",
        **ALONE,
    )
    assert "TORCH_TPU_COMPILE_PROGRESS: expected a number of seconds or 'off', got 'soon'" in errors
