"""``torch.compile`` without a backend: graphs of tpu tensors go to ours, others where they went.

PyTorch has a place for the default backend, but it is in ``torch._dynamo``, which takes seconds to
import. So it is filled in when PyTorch itself imports that module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_REGISTRY = "torch._dynamo.backends.registry"


def install() -> None:
    """Make ``device_backend`` what ``torch.compile`` takes when no backend is named."""
    registry = sys.modules.get(_REGISTRY)
    if registry is not None:
        _fill_in(registry)
    else:
        sys.meta_path.insert(0, _RegistryFinder())


def _fill_in(registry: ModuleType) -> None:
    registry.register_backend(tpu, name="tpu")
    # The user's choice stays.
    if registry.get_default_backend() == "inductor":
        registry.set_default_backend(device_backend)


class _RegistryFinder(importlib.abc.MetaPathFinder):
    """Finds the one module, as the other finders do, to add to what its import does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegistryLoader(spec.loader)
        return spec


class _RegistryLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _fill_in(module)


def tpu(graph: Any, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """The backend ``"tpu"``, of which only the name is loaded with PyTorch."""
    from torch_tpu.compiler import backend

    return backend.tpu(graph, example_inputs, **options)


def device_backend(
    graph: Any,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    dynamic: bool | None = None,
) -> Callable[..., Any]:
    """The default backend: "tpu" for graphs with tpu tensors, and "inductor" for all others."""
    import torch

    if _has_tpu_tensors(graph, example_inputs):
        return tpu(graph, example_inputs, mode=mode, options=options)
    inductor = torch._TorchCompileInductorWrapper(mode, options, dynamic)
    return inductor(graph, example_inputs)


def _has_tpu_tensors(graph: Any, example_inputs: list[Any]) -> bool:
    import torch

    def on_device(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "tpu"

    return any(on_device(value) for value in example_inputs) or any(
        on_device(node.meta.get("example_value")) for node in graph.graph.nodes
    )
