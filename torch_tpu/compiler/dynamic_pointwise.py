"""Padded tensors in elementwise operators, and tensors that are made of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu.compiler.dynamic_replay import (
    Call,
    dims_of,
    lowers,
    padded,
)
from torch_tpu.compiler.dynamic_sizes import Dim, Number, Padded, padded_size

aten = torch.ops.aten

# A number that depends on a size is a 0-d tensor; these have an overload that takes one.
_WITH_TENSOR = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.rsub.Scalar: aten.rsub.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.div.Scalar_mode: aten.div.Tensor_mode,
    aten.remainder.Scalar: aten.remainder.Tensor,
    aten.fmod.Scalar: aten.fmod.Tensor,
    aten.floor_divide.Scalar: aten.floor_divide.default,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
    aten.pow.Scalar: aten.pow.Tensor_Tensor,
    aten.eq.Scalar: aten.eq.Tensor,
    aten.ne.Scalar: aten.ne.Tensor,
    aten.lt.Scalar: aten.lt.Tensor,
    aten.le.Scalar: aten.le.Tensor,
    aten.gt.Scalar: aten.gt.Tensor,
    aten.ge.Scalar: aten.ge.Tensor,
    aten.masked_fill.Scalar: aten.masked_fill.Tensor,
    aten.where.ScalarOther: aten.where.self,
    aten.where.ScalarSelf: aten.where.self,
    aten.clamp.default: aten.clamp.Tensor,
    aten.clamp_min.default: aten.clamp_min.Tensor,
    aten.clamp_max.default: aten.clamp_max.Tensor,
}


def broadcast(call: Call, operands: Sequence[Any]) -> tuple[Dim, ...]:
    """The dimensions of what is computed elementwise of these tensors."""
    all_dims = [dims_of(operand) for operand in operands]
    rank = max((len(dims) for dims in all_dims), default=0)
    result: list[Dim] = [()] * rank
    for dims in all_dims:
        for axis, dim in enumerate(dims, start=rank - len(dims)):
            if not dim or call.same(result[axis], dim):
                continue
            if result[axis]:
                raise call.refuse("operands with their padding at different places")
            result[axis] = dim
    return tuple(result)


def _tensors(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, Padded | torch.Tensor)]


@lowers(
    torch.Tag.pointwise,
    aten._to_copy.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.copy.default,
    aten.bernoulli.p,
    aten.bernoulli.default,
    aten.native_dropout.default,
    aten.native_dropout_backward.default,
    aten.where.self,
    aten.hardswish.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.hardsigmoid_backward.default,
    aten.leaky_relu_backward.default,
    aten.elu_backward.default,
    aten.softplus.default,
    aten.softplus_backward.default,
    aten.mish_backward.default,
    aten.hardshrink_backward.default,
    aten.softshrink_backward.default,
    aten._prelu_kernel.default,
    aten._prelu_kernel_backward.default,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.zero.default,
    aten.rsub.Tensor,
    aten.floor_divide.default,
    aten.complex.default,
    aten.polar.default,
    aten.alias_copy.default,
    aten.uniform.default,
    aten.normal_functional.default,
    aten.exponential.default,
    aten.log_normal.default,
    aten.cauchy.default,
    aten.geometric.default,
    aten.random,
)
def _pointwise(call: Call) -> Any:
    if call.target._schema.is_mutable:
        raise call.refuse("it writes to its argument")
    if any(isinstance(value, list | tuple) for value in call.arguments.values()):
        raise call.refuse("lists of tensors or numbers")
    numbers = {name for name, value in call.arguments.items() if isinstance(value, Number)}
    if numbers:
        return _with_numbers(call, numbers)
    dims = broadcast(call, _tensors(list(call.arguments.values())))
    result = call.run()
    if isinstance(result, tuple):
        return tuple(padded(one, dims) for one in result)
    return padded(result, dims)


def _with_numbers(call: Call, numbers: set[str]) -> Any:
    target = _WITH_TENSOR.get(call.target, call.target)
    arguments = dict(call.arguments)
    for name in numbers:
        arguments[name] = call.replay.value_of(arguments[name].value)
    other = Call(call.replay, target, (), arguments, call.value)
    for argument in target._schema.arguments:
        value = other.arguments.get(argument.name)
        kind = str(argument.type)
        if "Tensor" in kind and isinstance(value, bool | int | float):
            dtype = torch.float64 if isinstance(value, float) else torch.int64
            other.arguments[argument.name] = torch.full(
                (), value, dtype=dtype, device=call.replay.device
            )
        if "Tensor" not in kind and argument.name in numbers:
            raise call.refuse(f"'{argument.name}' depends on a size")
    dims = broadcast(call, _tensors(list(other.arguments.values())))
    result = other.run()
    if result.dtype != call.value.dtype:
        result = result.to(call.value.dtype)
    return padded(result, dims)


@lowers(
    aten.full_like,
    aten.zeros_like,
    aten.ones_like,
    aten.empty_like,
    aten.rand_like,
    aten.randn_like,
)
def _like(call: Call) -> Any:
    fill = call.arguments.get("fill_value")
    if isinstance(fill, Number):
        zeros = call.run(fill_value=0)
        return padded(zeros + call.replay.value_of(fill.value).to(zeros.dtype), call.dims("self"))
    return padded(call.run(), call.dims("self"))


@lowers(
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.empty.memory_format,
    aten.rand.default,
    aten.randn.default,
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_empty.default,
    aten.scalar_tensor.default,
)
def _made(call: Call) -> Any:
    dims = tuple(call.replay.dim(size, constant=True) for size in call.result_sizes())
    changes: dict[str, Any] = {}
    if "size" in call.arguments:
        changes["size"] = [padded_size(dim) for dim in dims]
    name = "s" if call.target is aten.scalar_tensor.default else "fill_value"
    fill = call.arguments.get(name)
    if not isinstance(fill, Number):
        return padded(call.run(**changes), dims)
    if call.arguments.get("dtype") is None:
        changes["dtype"] = call.value.dtype
    zeros = call.run(**changes, **{name: 0})
    return padded(zeros + call.replay.value_of(fill.value).to(zeros.dtype), dims)


@lowers(aten.empty_strided.default, aten.new_empty_strided.default)
def _strided(call: Call) -> Any:
    dims = tuple(call.replay.dim(size, constant=True) for size in call.result_sizes())
    shape = [padded_size(dim) for dim in dims]
    return padded(torch.empty(shape, dtype=call.value.dtype, device=call.replay.device), dims)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(call: Call) -> Any:
    (size,) = call.result_sizes()
    dim = call.replay.dim(size)
    places = torch.arange(padded_size(dim), dtype=torch.int64, device=call.replay.device)
    start, step = (call.arguments.get(name) for name in ("start", "step"))
    for value in (start, step):
        if isinstance(value, float):
            raise call.refuse("'start' and 'step' are not whole numbers")
    if step is not None:
        places = places * _whole(call, step)
    if start is not None:
        places = places + _whole(call, start)
    return padded(places.to(call.value.dtype), (dim,))


def _whole(call: Call, number: Any) -> Any:
    return call.replay.value_of(number.value) if isinstance(number, Number) else number


@lowers(aten.tril.default, aten.triu.default)
def _triangle(call: Call) -> Any:
    dims = call.dims("self")
    if any(len(dim) > 1 for dim in dims[-2:]):
        raise call.refuse("padding in between")
    call.number("diagonal")
    return padded(call.run(), dims)


@lowers(aten.copy_.default)
def _copy_into_input(call: Call) -> Any:
    own, source = call["self"], call["src"]
    if not isinstance(own, Padded):
        if isinstance(source, Padded):
            raise call.refuse("what is written has another size than the input")
        return call.run()
    # The input itself has no padding: it is written behind the program.
    if not isinstance(source, Padded):
        raise call.refuse("an input of a dynamic size is written to with one of a fixed size")
    value = source.tensor.to(call.value.dtype)
    result = Padded(value, source.dims)
    call.replay.write(result)
    return result
