"""PyTorch's databases of operators, modules and optimizers."""

from __future__ import annotations

import functools
import warnings
from typing import Any

# Import order matters to PyTorch: its test helpers configure torch when they are imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db


@functools.cache
def operators() -> dict[str, Any]:
    """Entries of ``op_db`` by full name, "linalg.norm.subgradients_at_zero" for example."""
    return {info.full_name: info for info in common_methods_invocations.op_db}


@functools.cache
def foreach_operators() -> dict[str, Any]:
    """Entries of the databases of ``torch._foreach_*`` by name."""
    lists = (
        common_methods_invocations.foreach_unary_op_db,
        common_methods_invocations.foreach_binary_op_db,
        common_methods_invocations.foreach_pointwise_op_db,
        common_methods_invocations.foreach_reduce_op_db,
        common_methods_invocations.foreach_other_op_db,
    )
    return {info.full_name: info for infos in lists for info in infos}


@functools.cache
def modules() -> dict[str, Any]:
    """Entries of ``module_db`` by name, "nn.Linear" for example."""
    return {info.name: info for info in module_db}


@functools.cache
def optimizers() -> dict[str, Any]:
    """Entries of ``optim_db`` by name, "AdamW" for example."""
    return {info.name: info for info in optim_db}
