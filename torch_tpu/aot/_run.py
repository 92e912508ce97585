"""A compiled program as a function of its model's arguments."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from torch_tpu.export._interface import STATE, Interface, Value, dtype_name, in_words

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from torch_tpu.aot._program import CompiledProgram

    State = torch.nn.Module | Mapping[str, torch.Tensor] | ExportedProgram


class BoundProgram:
    """A compiled program with its parameters, buffers and constants: called like the model."""

    def __init__(
        self, program: CompiledProgram, interface: Interface, state: dict[int, torch.Tensor]
    ) -> None:
        self.program = program
        self._interface = interface
        self._state = state
        self._inputs = [v for v in interface.inputs if v.kind != "rng_state"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.program!r}>"

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The tensors on the device, by their names in the model; those it writes have changed."""
        return {
            value.target: self._state[place]
            for place, value in enumerate(self._inputs)
            if place in self._state and value.target is not None
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. Arguments on the CPU are copied to the device; nothing is compiled."""
        interface = self._interface
        given = dict(self._state)
        flat = interface.flatten(args, kwargs)
        for leaf, value in zip(interface.arguments, flat, strict=True):
            if leaf.place is not None:
                given[leaf.place] = value
        outputs = self.program.run([given[place] for place in range(len(self._inputs))])
        return interface.unflatten(
            [
                leaf.value if leaf.place is None else outputs[leaf.place]
                for leaf in interface.results
            ]
        )


def bind(program: CompiledProgram, state: State) -> BoundProgram:
    """See `CompiledProgram.bind`."""
    if program.interface is None:
        raise TypeError(
            "[aot] a program that was given as text has no names for its inputs; run it is not "
            "possible. Compile the model or its exported program instead"
        )
    program.check_device()
    named = _named_tensors(state)
    held: dict[int, torch.Tensor] = {}
    for place, value in enumerate(program.interface.inputs):
        if value.kind not in STATE:
            continue
        assert value.target is not None
        tensor = named.get(value.target)
        if tensor is None:
            tensor = _constant(program, value, named)
        if tuple(tensor.shape) != value.shape or tensor.dtype != value.dtype:
            raise ValueError(
                f"[aot] expected the {value.kind} {value.target} to be "
                f"{dtype_name(value.dtype)}{list(value.shape)}, the state has {in_words(tensor)}"
            )
        held[place] = tensor.detach().to("tpu")
    return BoundProgram(program, program.interface, held)


def _named_tensors(state: State) -> Mapping[str, torch.Tensor]:
    if isinstance(state, torch.nn.Module):
        return {
            **dict(state.named_parameters(remove_duplicate=False)),
            **dict(state.named_buffers(remove_duplicate=False)),
        }
    if isinstance(state, Mapping):
        return state
    if not isinstance(state, torch.export.ExportedProgram):
        raise TypeError(
            "[aot] bind: expected the model, its state dict or the exported program, got "
            f"{type(state).__name__}"
        )
    return {**state.constants, **state.state_dict}


def _constant(
    program: CompiledProgram, value: Value, named: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The value that came with the program."""
    assert value.target is not None
    content = program._constants.get(value.target)
    if content is None:
        others = [name for name, tensor in named.items() if tensor is not None]
        near = difflib.get_close_matches(value.target, others, n=3) or others[:3]
        more = f" and {len(others) - len(near)} more" if len(others) > len(near) else ""
        raise KeyError(
            f"[aot] expected a {value.kind} named {value.target} in the state, which has none"
            f"{'; it has ' + ', '.join(near) + more if near else ''}"
        )
    if not content:
        return torch.empty(value.shape, dtype=value.dtype)
    return torch.frombuffer(bytearray(content), dtype=value.dtype).reshape(value.shape)


def content_of(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order."""
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""
