"""Additions to PyTorch's modules that take seconds to import: made when PyTorch imports them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Addition = Callable[[ModuleType], None]


def when_imported(name: str, addition: Addition) -> None:
    """Call ``addition`` with the module: now, or behind the end of its import."""
    module = sys.modules.get(name)
    if module is not None:
        addition(module)
    else:
        sys.meta_path.insert(0, _Finder(name, addition))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module, as the other finders do, to add to what its import does."""

    def __init__(self, name: str, addition: Addition) -> None:
        self._name = name
        self._addition = addition

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._addition)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, addition: Addition) -> None:
        self._loader = loader
        self._addition = addition

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._addition(module)
