"""Every case that is not held to the common rule, with the reason beside it.

Names are those of PyTorch's databases. Nothing here is loosened for all operators at once.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import torch

# Operators that draw random numbers, or whose result is not defined: the device draws others.
# Where the CPU gives the same result twice for a sample (dropout with p=0), values are compared;
# otherwise shape, dtype and strides are. The distributions have tests of their own.
UNINITIALISED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
RANDOM: dict[str, str] = {
    **dict.fromkeys(UNINITIALISED, "memory is not initialised"),
    **dict.fromkeys(
        (
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "nn.functional.alpha_dropout",
            "nn.functional.dropout",
            "nn.functional.dropout2d",
            "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout.with_train",
            "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d",
            "nn.functional.multi_head_attention_forward",
            "nn.functional.rrelu",
            "nn.functional.scaled_dot_product_attention",
            "normal",
            "normal.in_place",
            "normal.number_mean",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "svd_lowrank",
            "uniform",
        ),
        "draws random numbers",
    ),
}


# Operators whose tensors after the first are on the CPU on every device.
HOST_ARGUMENTS: dict[str, str] = {"tensor_split": "the positions to split at decide shapes"}


# Operators told to sum halves in float32, with the option they have for it.
SUMMED_IN_FLOAT32: dict[str, str] = dict.fromkeys(
    (
        "nn.functional.linear_cross_entropy.chunked",
        "nn.functional.linear_cross_entropy.chunked_none",
    ),
    "left to choose, PyTorch takes float32 on the CPU and CUDA alone",
)


# Messages of the right type in words of PyTorch's other kernels, for operators whose CPU kernel is
# not asked.
OWN_WORDS: dict[str, str] = {"masked_fill": "could not convert to type .* without overflow"}

# Operators that may choose between equal elements: an index counts as the element it names. With
# the place of `dim` among the arguments after the input.
CHOOSES: dict[str, tuple[int, str]] = {
    "argsort": (0, "equal elements have no order unless stable=True"),
    "sort": (0, "equal elements have no order unless stable=True"),
    "topk": (1, "equal elements have no order"),
    "kthvalue": (1, "equal elements have no order"),
    "mode": (0, "any place of the most frequent value"),
}

# Operators that call a fused attention, whose gradients have no gradients, on CUDA neither: twice
# differentiated, attention is products and a softmax.
FUSED_ATTENTION: dict[str, str] = {
    "nn.functional.scaled_dot_product_attention": (
        "the gradients of a fused attention have no gradients; with SDPBackend.MATH they do"
    )
}

# Operators whose integer arguments are not laid out otherwise.
CONTIGUOUS_INTEGERS: dict[str, str] = {"nn.CTCLoss": "the CPU's kernel reads past strided targets"}

# Operators whose results have no sign: with `out=`, absolute values are compared. In other calls
# the database says how.
NO_SIGN: dict[str, str] = {"linalg.eigh": "an eigenvector times -1 is one, too"}

# Operators (regular expressions) not called with expanded inputs.
_SINGULAR = "one row repeated makes a singular matrix, whose factors are arbitrary"
_SHARED = "statistics whose elements share memory cannot be written"
NOT_EXPANDED: dict[str, str] = {
    r"pinverse|cholesky_inverse|lu|qr|svd|.*_lowrank|geqrf|logdet": _SINGULAR,
    r"linalg\.(cholesky_ex|cond|inv_ex|ldl_solve|lstsq.*|lu|lu_factor.*)": _SINGULAR,
    r"linalg\.(qr|solve_triangular|svd|tensorsolve)": _SINGULAR,
    r"nn\.functional\.batch_norm.*|.*_batch_norm.*": _SHARED,
    r"masked\.median": "the CPU's kernel reads contiguous tensors only",
}

# Operators with statistics among their results, which the CPU returns in the dtype of the input and
# this device, like CUDA, in float32.
STATISTICS: dict[str, str] = {
    "native_layer_norm": "mean and rstd",
    "native_batch_norm": "mean and inverse deviation",
    "_native_batch_norm_legit": "mean and inverse deviation",
    "_batch_norm_with_update": "mean and inverse deviation",
}


@dataclass(frozen=True)
class Wider:
    """A wider tolerance: at most the 1e-3 of PyTorch's own comparison of CUDA with the CPU.

    Where the CPU's own error is larger than that, a small multiple of it.
    """

    rtol: float
    atol: float
    reason: str


_CANCELS = "a difference of exponentials of sums: the CPU's own error is as large"
_STEEP = "the slope near the end of the domain multiplies the rounding of the function"
_ALIGNMENTS = "gradients are differences of sums over all alignments"
_GAPS = "divides by differences of squared singular values, again and again"
_REFLECTIONS = "sums over products of all reflections, whose terms cancel"
_RATIOS = "differences of ratios of erfcx, each rounded"
# The largest error is 4.5e-3, of the CPU 2.2e-3; in complex128 both agree to 1e-14.
_NEAR_10000 = "exponentials of differences of numbers near 10000, whose last digit is 1e-3"
_LARGE_EXPONENTS = "results up to 1e16: the rounding of an exponent near 40 is the result's error"
# (suite, operator, dtype); "" stands for every suite.
WIDER: dict[tuple[str, str, torch.dtype], Wider] = {
    ("modules", "nn.CTCLoss", torch.float32): Wider(1e-5, 3e-5, _ALIGNMENTS),
    ("foreach", "_foreach_pow", torch.complex64): Wider(1e-5, 1e-5, _LARGE_EXPONENTS),
    ("gradients", "__rpow__", torch.complex64): Wider(1e-5, 1e-5, _LARGE_EXPONENTS),
    ("gradients", "logcumsumexp", torch.float32): Wider(1e-3, 1e-3, _CANCELS),
    ("gradients", "logcumsumexp", torch.complex64): Wider(1e-3, 5e-3, _NEAR_10000),
    ("gradients", "svd", torch.complex64): Wider(1e-4, 2e-4, _GAPS),
    ("gradients", "linalg.svd", torch.complex64): Wider(1e-4, 2e-4, _GAPS),
    ("gradients", "linalg.householder_product", torch.float32): Wider(5e-5, 2e-4, _REFLECTIONS),
    ("gradients", "erfinv", torch.float32): Wider(2e-5, 1e-5, _STEEP),
    ("gradients", "special.ndtri", torch.float32): Wider(5e-6, 1e-5, _STEEP),
    ("gradients", "special.log_ndtr", torch.float32): Wider(5e-5, 2e-5, _RATIOS),
}

# Errors that depend on values, which are on the device: as on CUDA, a call does not wait for them.
UNCHECKED: dict[str, str] = {
    "multinomial": "probability tensor contains|invalid multinomial distribution",
    "gather": "out of bounds",
    "put": "out of range",
    "take": "out of range",
    "scatter": "out of bounds",
    "scatter_add": "out of bounds",
    **{f"scatter_reduce.{how}": "out of bounds" for how in ("sum", "prod", "mean", "amax", "amin")},
    "_segment_reduce.lengths": "rows of lengths along axis to sum to",
}

# (suite, or suite/variant, operator, dtype) to the reason; "" stands for every suite or dtype.
_CONTIGUOUS_ONLY = "the CPU's kernel reads contiguous tensors only"
_NO_COMPLEX_HALF = "XLA has no complex numbers of two float16"
EXCLUDED: dict[tuple[str, str, str], str] = {
    ("", "chalf", ""): _NO_COMPLEX_HALF,
    ("", "complex", "float16"): _NO_COMPLEX_HALF,
    ("", "view_as_complex", "float16"): _NO_COMPLEX_HALF,
    ("variants/noncontiguous", "native_group_norm", ""): _CONTIGUOUS_ONLY,
    ("variants/transposed", "native_group_norm", ""): _CONTIGUOUS_ONLY,
    ("variants/expanded", "native_group_norm", ""): _CONTIGUOUS_ONLY,
    ("variants/0-d", "_chunk_cat", ""): "the CPU crashes on tensors without dimensions",
    ("variants/out", "normal.number_mean", ""): "the CPU does not resize an empty `out`",
    ("variants", "resize_", ""): "what a tensor grows by is not initialised",
}


def wider_tolerance(suite: str, op: str, dtype: torch.dtype) -> Wider | None:
    """The listed tolerance of an operator, if it has one."""
    return WIDER.get((suite, op, dtype)) or WIDER.get(("", op, dtype))


def goes_unchecked(op: str, error: BaseException) -> bool:
    """Whether an error of the CPU is one the device does not look for."""
    return op in UNCHECKED and re.search(UNCHECKED[op], str(error)) is not None


def says_it_otherwise(op: str, error: BaseException) -> bool:
    """Whether an error of the device has one of the listed messages."""
    return op in OWN_WORDS and re.search(OWN_WORDS[op], str(error)) is not None


def reason_excluded(suite: str, op: str, variant: str, dtype: str) -> str | None:
    """Why a case is not run, if it is not."""
    for key in itertools.product((f"{suite}/{variant}", suite, ""), (op,), (dtype, "")):
        if key in EXCLUDED:
            return EXCLUDED[key]
    return None
