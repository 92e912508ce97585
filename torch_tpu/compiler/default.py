"""What PyTorch's compiler knows of the device before something is compiled.

``torch.compile`` without a backend: graphs of tpu tensors go to ours, others where they went.
PyTorch has a place for the default backend, but it is in ``torch._dynamo``, which takes seconds to
import. So it is filled in when PyTorch itself imports that module, and so are the others here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_tpu.compiler.on_import import when_imported


def install() -> None:
    """Make ``tpu_or_inductor`` what ``torch.compile`` takes when no backend is named."""
    when_imported("torch._dynamo.backends.registry", _add_backends)
    when_imported("torch._dynamo.device_interface", _add_device_interface)
    when_imported("torch._dynamo.trace_rules", _add_trace_rules)
    when_imported("torch._dynamo.variables.torch", _add_constants)
    when_imported("torch._inductor.codegen.common", _add_refusal)
    when_imported("torch._decomp.decompositions", _keep_interpolation_whole)
    when_imported("torch._subclasses.fake_impls", _add_fake_kernels)
    when_imported("torch._subclasses.fake_tensor", _keep_devices_out_of_cache)


def _add_backends(registry: ModuleType) -> None:
    registry.register_backend(tpu, name="tpu")
    # The user's choice stays.
    if registry.get_default_backend() == "inductor":
        registry.set_default_backend(tpu_or_inductor)


def _add_device_interface(module: ModuleType) -> None:
    """PyTorch registers the class of this name for "tpu" when it is first asked for one."""
    from torch_tpu.compiler.device_interface import interface

    module.TpuInterface = interface(module.TpuInterface)  # type: ignore[attr-defined]


# Of torch.tpu: what does not change while a process runs, and what a compiled function has to be
# compiled again for.
_CONSTANTS = ("device_count", "is_available", "is_bf16_supported")
_GUARDED = ("current_device", "is_initialized")


def _functions(names: tuple[str, ...]) -> dict[str, Any]:
    from torch_tpu import tpu as module

    found = {name: getattr(module, name, None) for name in names}
    return {f"{f.__module__}.{f.__name__}": f for f in found.values() if f is not None}


def _add_trace_rules(module: ModuleType) -> None:
    """Dynamo calls these functions, and breaks graphs at others, instead of looking into them."""
    module.add("torch_tpu.tpu")
    names = _functions(_CONSTANTS + _GUARDED)
    variable = module.TorchInGraphFunctionVariable
    module.torch_name_rule_map.append(dict.fromkeys(names, variable))


def _add_constants(module: ModuleType) -> None:
    guarded = dict.fromkeys(_functions(_GUARDED).values())
    module.constant_fold_functions_need_guards.update(guarded)
    module.constant_fold_functions.update(guarded)
    module.constant_fold_functions.update(dict.fromkeys(_functions(_CONSTANTS).values()))


def _add_fake_kernels(module: ModuleType) -> None:
    from torch_tpu.compiler import fake_kernels

    fake_kernels.install(module)


def _keep_devices_out_of_cache(module: ModuleType) -> None:
    from torch_tpu.compiler import fake_kernels

    fake_kernels.look_up_devices(module)


def _keep_interpolation_whole(module: ModuleType) -> None:
    from torch_tpu.compiler import interpolation

    interpolation.install(module)


class _Refusal:
    """Stands for inductor's code generators for the device, of which there are none."""

    supports_caching = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.create()

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> Any:
        """What inductor calls of a wrapper's generator."""
        raise RuntimeError(
            "torch.compile: the backend 'inductor' has no code generator for tpu tensors; "
            "use backend='tpu', or name no backend"
        )


def _add_refusal(module: ModuleType) -> None:
    """In place of the generator that PyTorch would register, which needs another package."""
    module.register_backend_for_device("tpu", _Refusal, _Refusal, _Refusal, _Refusal)


def tpu(graph: Any, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """The backend ``"tpu"``, of which only the name is loaded with PyTorch."""
    from torch_tpu.compiler import backend

    return backend.tpu(graph, example_inputs, **options)


def tpu_or_inductor(
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
        if isinstance(value, list | tuple):
            return any(on_device(entry) for entry in value)
        return isinstance(value, torch.Tensor) and value.device.type == "tpu"

    return on_device(example_inputs) or any(
        on_device(node.meta.get("example_value")) for node in graph.graph.nodes
    )
