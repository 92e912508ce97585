"""Options and fixtures shared by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import compare
import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--device`, so that a test itself can be checked against another device."""
    parser.addoption("--device", default="tpu", help="device under test (default: tpu)")


def pytest_configure(config: pytest.Config) -> None:
    """Tells the comparison helpers which device results have to come from."""
    compare.DEVICE = config.getoption("--device")
    # The CPU multiplies in float32, so the device has to; its default does not. Tests of the levels
    # choose their own.
    torch.set_float32_matmul_precision("highest")
    config.addinivalue_line("filterwarnings", "ignore::torch_tpu.PerformanceWarning")
    config.addinivalue_line(
        "markers",
        "single_operators: counts their programs, or looks when they fail; fusing changes it",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out, in the deferred mode, the tests of how single operators are dispatched."""
    if os.environ.get("TORCH_TPU_DEFER_AND_FUSE") != "1":
        return
    skip = pytest.mark.skip(reason="about the programs of single operators, which fusing merges")
    for item in items:
        if item.get_closest_marker("single_operators"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test."""
    return torch.device(compare.DEVICE)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Starts every test from the same random state."""
    torch.manual_seed(0)


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """Fails a test in which the device handed an op to the CPU."""
    before = compare.fallback_counts()
    yield
    after = compare.fallback_counts()
    grown = {op: n - before.get(op, 0) for op, n in after.items() if n > before.get(op, 0)}
    assert not grown, f"ops computed on the CPU: {grown}"
