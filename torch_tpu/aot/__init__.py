"""Programs compiled for TPUs that need not be attached.

The compiler is libtpu's own (``pip install 'torch_tpu[libtpu]'``); it works on any Linux machine.
What it says of a program -- whether it compiles, the memory it takes, the time it should take --
holds for the real device. The device "tpu" of this process is neither used nor changed.
"""

import torch  # noqa: F401 - the engine needs its libraries

from torch_tpu.aot._compile import CompileError, compile, compile_stablehlo  # noqa: A004
from torch_tpu.aot._program import CompiledProgram, Identity, Memory, MismatchError
from torch_tpu.aot._run import BoundProgram
from torch_tpu.aot._target import written_for_tpu
from torch_tpu.aot._topology import Topology, topologies, topology

__all__ = [
    "BoundProgram",
    "CompileError",
    "CompiledProgram",
    "Identity",
    "Memory",
    "MismatchError",
    "Topology",
    "compile",
    "compile_stablehlo",
    "topologies",
    "topology",
    "written_for_tpu",
]
