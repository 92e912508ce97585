"""Registers the device with PyTorch."""

from __future__ import annotations

_loaded = False


def load() -> None:
    """Make ``torch.device("tpu")`` usable. Idempotent; called by ``import torch``.

    No plugin is loaded until the device is first used.
    """
    global _loaded
    if _loaded:
        return
    import atexit
    import sys

    import torch

    torch.utils.rename_privateuse1_backend("tpu")

    from torch_tpu import _C, _backend, aot, decompositions, export, remote_cache, tpu
    from torch_tpu.compiler import default
    from torch_tpu.tpu import _precision

    _C.set_torch_version(f"{torch.__version__} {torch.version.git_version}")
    _C.set_plugin_search(_at_first_use)
    _C.set_decomposition(decompositions.run)
    _C.set_remote_stores(remote_cache.RemoteStore)
    _C.set_stack_source(tpu._explain.user_stack)
    _C.set_slow_precision_notice(_precision.warn_of_passes)
    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    # The modules' names, so that `import torch.tpu` works too.
    sys.modules["torch.backends.tpu"] = _backend
    sys.modules["torch.tpu.compilation_cache"] = tpu.compilation_cache
    sys.modules["torch.tpu.debug"] = tpu.debug
    sys.modules["torch.tpu.aot"] = aot
    sys.modules["torch.tpu.optimizers"] = tpu.optimizers
    sys.modules["torch.tpu.export"] = export
    sys.modules["torch.tpu.compiler"] = tpu.compiler
    setattr(torch.backends, "tpu", _backend)  # noqa: B010 - torch does not declare it
    default.install()
    # The last one registered runs first.
    atexit.register(_C.leave_python)
    atexit.register(_C.finish)
    _loaded = True


def _at_first_use() -> tuple[list[str], list[str]]:
    """Where plugins may be; asked for when the device is used for the first time."""
    from torch_tpu import plugins
    from torch_tpu.compiler import late_import

    late_import.install()
    return plugins.find_plugins()
