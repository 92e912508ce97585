"""The graphs with symbols that a test compiles."""

from __future__ import annotations

from typing import Any

import pytest

from torch_tpu.compiler import dynamic


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dynamic.DynamicGraph]:
    """A list that gets them as they are made."""
    made: list[dynamic.DynamicGraph] = []

    class Recorded(dynamic.DynamicGraph):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(dynamic, "DynamicGraph", Recorded)
    return made
