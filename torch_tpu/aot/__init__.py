"""Programs compiled for TPUs that need not be attached.

The compiler is libtpu's own (``pip install 'torch_tpu[libtpu]'``); it works on any Linux machine.
What it says of a program -- whether it compiles, the memory it takes, the time it should take --
holds for the real device. The device "tpu" of this process is neither used nor changed.
"""

import torch  # noqa: F401 - the engine needs its libraries

from torch_tpu.aot._compile import CompileError, compile_stablehlo
from torch_tpu.aot._program import CompiledProgram, Memory
from torch_tpu.aot._topology import Topology, topologies, topology

__all__ = [
    "CompileError",
    "CompiledProgram",
    "Memory",
    "Topology",
    "compile_stablehlo",
    "topologies",
    "topology",
]
