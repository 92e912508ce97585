"""The module ``torch.tpu``: devices, streams, random state and memory of the device "tpu".

The names are those of ``torch.cuda``, so that code written for it changes in the device string
only. Nothing here loads a plugin before the device is used.
"""

from typing import TYPE_CHECKING

from torch_tpu import aot, export
from torch_tpu.tpu import _utils, compilation_cache, compiler, debug, optimizers
from torch_tpu.tpu._amp import get_amp_supported_dtype, is_bf16_supported
from torch_tpu.tpu._compile_step import compile_step
from torch_tpu.tpu._compile_times import CompileTimes, compile_times
from torch_tpu.tpu._device import (
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.tpu._device import init as _lazy_init
from torch_tpu.tpu._device import is_in_bad_fork as _is_in_bad_fork
from torch_tpu.tpu._diagnostics import (
    DispatchStats,
    dispatch_stats,
    get_platform_name,
    get_platform_version,
    get_plugin_path,
    reset_dispatch_stats,
    set_fallback,
)
from torch_tpu.tpu._explain import Dispatched, Explanation, explain
from torch_tpu.tpu._memory import (
    empty_cache,
    get_memory_info,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_tpu.tpu._modes import EagerMode, eager_mode, set_eager_mode
from torch_tpu.tpu._precision import Precision, current_precision, precision
from torch_tpu.tpu._properties import DeviceProperties, get_device_name, get_device_properties
from torch_tpu.tpu._random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu._streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_tpu.tpu._warmup import WarmupReport, warmup
from torch_tpu.tpu.compilation_cache import _get_cache_stats

if TYPE_CHECKING:
    from torch_tpu.tpu._compiled_step import CompiledStep

# Read by torch.utils.checkpoint: whether the device's random state can be saved. It always can,
# without the device being started.
_initialized = True

__all__ = [
    "CompileTimes",
    "CompiledStep",
    "DeviceProperties",
    "DispatchStats",
    "Dispatched",
    "EagerMode",
    "Event",
    "Explanation",
    "Precision",
    "Stream",
    "StreamContext",
    "WarmupReport",
    "_get_cache_stats",
    "_initialized",
    "_is_in_bad_fork",
    "_lazy_init",
    "_utils",
    "aot",
    "compilation_cache",
    "compile_step",
    "compile_times",
    "compiler",
    "current_device",
    "current_precision",
    "current_stream",
    "debug",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "dispatch_stats",
    "eager_mode",
    "empty_cache",
    "explain",
    "export",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_memory_info",
    "get_platform_name",
    "get_platform_version",
    "get_plugin_path",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "optimizers",
    "precision",
    "reset_accumulated_memory_stats",
    "reset_dispatch_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_fallback",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "warmup",
]


def __getattr__(name: str) -> object:
    if name == "CompiledStep":
        from torch_tpu.tpu._compiled_step import CompiledStep

        return CompiledStep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
