"""A native PyTorch backend for TPUs: the device "tpu"."""

from torch_tpu._loader import load
from torch_tpu._warnings import PerformanceWarning

__version__ = "0.1.0"


def _autoload() -> None:
    """Entry point of ``torch.backends``: called by ``import torch``."""
    load()


__all__ = ["PerformanceWarning", "__version__", "load"]
