"""Where PJRT plugins may be found among the installed packages."""

from __future__ import annotations

import importlib.util
import os

# Packages with a CPU plugin, the default dependency first (see docs/measurements.md).
_CPU_PLUGINS = (
    ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so"),
)


def _in_package(package: str, name: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    if spec is None:
        return []
    paths = [os.path.join(root, name) for root in spec.submodule_search_locations or []]
    return [path for path in paths if os.path.exists(path)]


def find_plugins() -> tuple[list[str], list[str]]:
    """Candidate paths: (libtpu, CPU plugins), best first."""
    libtpu = _in_package("libtpu", "libtpu.so")
    cpu = [path for package, name in _CPU_PLUGINS for path in _in_package(package, name)]
    return libtpu, cpu
