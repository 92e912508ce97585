"""Shapes and dtypes of results, for operators whose fake kernels PyTorch lacks for the device.

Dynamo and AOTAutograd run a function on tensors without data. For an operator that says nothing of
its result, PyTorch runs the operator on zeros on the device; here it runs on the CPU, which
compiles no program. For others it knows what CUDA's kernels accept, which is less than the
device's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def install(fake_impls: ModuleType) -> None:
    """Add them to ``torch._subclasses.fake_impls``."""
    register = fake_impls.register_op_impl
    register(torch.ops.aten._grouped_mm.default)(_for_tpu(_grouped_mm))
    register(_says_nothing)(_for_tpu(_on_cpu))
    for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d"):
        packet = getattr(torch.ops.aten, f"upsample_{name}_backward")
        register(packet.default)(_for_tpu(_resized_backward))


def look_up_devices(fake_tensor: ModuleType) -> None:
    """Keep ``torch._subclasses.fake_tensor`` from remembering what ``device="tpu"`` stood for.

    Its cache has results by their calls' arguments. Without an index the device is the current one,
    which may be another at the next call.
    """
    mode = fake_tensor.FakeTensorMode
    validate = mode._validate_cache_key

    @functools.wraps(validate)
    def validate_cache_key(self: Any, func: Any, args: Any, kwargs: Any) -> None:
        device = kwargs.get("device")
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device) and device.type == "tpu" and device.index is None:
            raise fake_tensor._BypassDispatchCache("a device without an index")
        validate(self, func, args, kwargs)

    mode._validate_cache_key = validate_cache_key


@functools.cache
def _says_nothing(op: Any) -> bool:
    """Whether a built-in operator has neither a kernel for tensors without data nor a composite."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return op.namespace == "aten" and not any(
        has_kernel(op.name(), key)
        for key in (
            "Meta",
            "CompositeExplicitAutograd",
            "CompositeExplicitAutogradNonFunctional",
            "CompositeImplicitAutograd",
        )
    )


def _for_tpu(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves calls without tpu tensors to what PyTorch does."""

    def call(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(t.device.type == "tpu" for t in _tensors(args, kwargs)):
            return NotImplemented
        return kernel(mode, op, *args, **kwargs)

    return call


def _tensors(*values: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _grouped_mm(
    mode: Any,
    op: Any,
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    rows, columns = a.shape[-2], b.shape[-1]
    if a.dim() == 2 and b.dim() == 2:
        assert offs is not None
        shape = [offs.shape[0], rows, columns]
    elif a.dim() == 3 and b.dim() == 3:
        shape = [a.shape[0], rows, columns]
    else:
        shape = [rows, columns]
    with mode:
        return a.new_empty(shape, dtype=out_dtype)


def _resized_backward(
    mode: Any, op: Any, grad: Tensor, output_size: Any, input_size: Any, *args: Any, **kwargs: Any
) -> Any:
    if not any(isinstance(size, torch.SymInt) for size in input_size):
        return NotImplemented  # PyTorch's kernel knows
    with mode:
        return grad.new_empty(input_size)


def _on_cpu(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._mode_utils import no_dispatch
    from torch.utils._pytree import tree_map, tree_map_only

    tensors = _tensors(args, kwargs)
    if op._schema.is_mutable or not all(isinstance(t, FakeTensor) for t in tensors):
        return NotImplemented
    if any(t._has_symbolic_sizes_strides for t in tensors):
        return NotImplemented
    device = next(t.device for t in tensors if t.device.type == "tpu")

    def zeros(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()

    # What draws random numbers draws none of the program's.
    with no_dispatch(), torch.random.fork_rng(devices=[]):
        results = op(*tree_map(zeros, args), **tree_map(zeros, kwargs))
        without_data = tree_map_only(Tensor, lambda t: t.to("meta"), results)
    return tree_map_only(Tensor, lambda t: FakeTensor(mode, t, device), without_data)
