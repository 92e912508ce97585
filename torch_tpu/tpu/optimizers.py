"""The module ``torch.tpu.optimizers``: a trainer whose step is one program.

:func:`torch.tpu.compile_step` does this for any step and any optimizer of ``torch.optim``. Here is
the shorter form for a model with one loss, and optimizers that do not have their parameters yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_tpu.tpu._compile_step import compile_step

if TYPE_CHECKING:
    from torch_tpu.tpu._compiled_step import CompiledStep

Loss = Callable[..., torch.Tensor]


class Optimizer:
    """What makes an optimizer of ``torch.optim`` once there are parameters."""

    def __init__(self, kind: type[torch.optim.Optimizer], **settings: Any) -> None:
        """`settings` are what the optimizer takes besides the parameters."""
        self._kind = kind
        self._settings = settings

    def make(self, parameters: Iterable[nn.Parameter]) -> list[torch.optim.Optimizer]:
        """The optimizers for these parameters."""
        return [self._kind(list(parameters), **self._settings)]


class AdamW(Optimizer):
    """``torch.optim.AdamW`` without parameters yet."""

    def __init__(self, lr: float = 1e-3, **settings: Any) -> None:
        """`settings`: as ``torch.optim.AdamW`` takes them."""
        super().__init__(torch.optim.AdamW, lr=lr, **settings)


class Sgd(Optimizer):
    """``torch.optim.SGD`` without parameters yet."""

    def __init__(self, lr: float = 1e-3, momentum: float = 0.0, **settings: Any) -> None:
        """`settings`: as ``torch.optim.SGD`` takes them."""
        super().__init__(torch.optim.SGD, lr=lr, momentum=momentum, **settings)


class Muon(Optimizer):
    """``torch.optim.Muon`` for matrices, and another optimizer for the other parameters."""

    def __init__(self, lr: float = 1e-3, others: Optimizer | None = None, **settings: Any) -> None:
        """`others`: for what is no matrix; :class:`AdamW` with the same rate if there is none."""
        super().__init__(torch.optim.Muon, lr=lr, **settings)
        self._others = others or AdamW(lr)

    def make(self, parameters: Iterable[nn.Parameter]) -> list[torch.optim.Optimizer]:
        """An optimizer for each of the two kinds of parameters that there are."""
        parameters = list(parameters)
        matrices = [p for p in parameters if p.ndim == 2]
        rest = [p for p in parameters if p.ndim != 2]
        made = super().make(matrices) if matrices else []
        return made + (self._others.make(rest) if rest else [])


class SingleTraceTrainer:
    """Trains a model by a step that is one program: forward, loss, backward and optimizer."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer
        | torch.optim.Optimizer
        | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
        | None = None,
        *,
        loss_fn: Loss | None = None,
        compile_fn: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        accumulate: int = 1,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            model: On the device.
            optimizer: One of this module, one of ``torch.optim``, or a function that makes it of
                the model's parameters. Without, a step leaves gradients in ``p.grad``.
            loss_fn: Given the model's output and the targets, if the step has any. Without: the
                output's field ``loss`` if it has one; else the mean squared error against the
                targets; else the mean of the output.
            compile_fn: What to compile the step with; :func:`torch.tpu.compile_step` if None.
            accumulate: In how many parts a batch is run.
        """
        self.model = model
        self.optimizers: list[torch.optim.Optimizer] = []
        if isinstance(optimizer, Optimizer):
            self.optimizers = optimizer.make(model.parameters())
        elif isinstance(optimizer, torch.optim.Optimizer):
            self.optimizers = [optimizer]
        elif optimizer is not None:
            self.optimizers = [optimizer(model.parameters())]
        self._loss_fn = loss_fn
        self._compile_fn = compile_fn
        self._accumulate = accumulate

    def make_compiled_train_step(
        self,
        *example: Any,
        compile_fn: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> Callable[..., torch.Tensor]:
        """The step: ``step(inputs, targets)`` or ``step(inputs)`` trains and gives the loss.

        `inputs` is what the model takes: a tensor, a tuple of arguments or a dictionary of keyword
        arguments. `example` is not needed: the step looks at what it is called with.
        """
        chosen = compile_fn or self._compile_fn
        if chosen is not None:
            return chosen(self._step)
        step: CompiledStep = compile_step(
            self._step, accumulate=self._accumulate, keep_gradients=not self.optimizers
        )
        return step

    def _step(self, inputs: Any, targets: Any = None) -> torch.Tensor:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if not self.optimizers:
            self.model.zero_grad()
        if isinstance(inputs, Mapping):
            output = self.model(**inputs)
        elif isinstance(inputs, tuple):
            output = self.model(*inputs)
        else:
            output = self.model(inputs)
        loss = self._loss(output, targets)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()

    def _loss(self, output: Any, targets: Any) -> torch.Tensor:
        if self._loss_fn is not None:
            return self._loss_fn(output) if targets is None else self._loss_fn(output, targets)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            return loss
        result = _first_tensor(output)
        if targets is None:
            return result.mean()
        return nn.functional.mse_loss(result, targets)


def _first_tensor(output: Any) -> torch.Tensor:
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            return leaf
    raise TypeError(
        "torch.tpu.optimizers: expected the model to return a tensor, got "
        f"{type(output).__name__}; pass loss_fn"
    )


__all__ = ["AdamW", "Muon", "Optimizer", "Sgd", "SingleTraceTrainer"]
