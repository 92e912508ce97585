"""A native PyTorch backend for TPUs: the device "tpu"."""

import sys

from torch_tpu._loader import load
from torch_tpu._warnings import PerformanceWarning

__version__ = "0.1.0"


def _autoload() -> None:
    """Entry point of ``torch.backends``: called by ``import torch``."""
    load()


# The engine needs torch's libraries, so torch comes before any module of this package. The command
# line (`python -m`) decides for itself: help should not wait for it.
if "torch" not in sys.modules and sys.argv[:1] != ["-m"]:
    import torch  # noqa: F401

__all__ = ["PerformanceWarning", "__version__", "load"]
