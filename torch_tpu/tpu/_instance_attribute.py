"""Attributes of an object that are others for a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def instance_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Puts an attribute on an object; afterwards it has what it had, or its class's again."""
    missing = object()
    old = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)
