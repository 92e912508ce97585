"""The dtypes tests run over."""

from __future__ import annotations

import torch

# What most operators take, reals before the others.
REAL = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
]
COMMON = [*REAL, torch.bool, torch.complex64]

# All that take part in type promotion.
PROMOTED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
