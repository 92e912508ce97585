"""The choice, for a Dynamo graph of symbolic sizes, of programs that serve many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

if TYPE_CHECKING:
    from torch_tpu.compiler.dynamic import Family, Run


class DynamicFamily:
    """The forward and the backward of a Dynamo graph, as far as their sizes are symbols.

    Args:
        buckets: the option ``dynamic_buckets`` of ``torch.compile``: a list of the sizes to pad to,
            True for powers of two and 1.5 times them, or False for no padding. Each size is then
            compiled for itself.
    """

    def __init__(self, buckets: Any) -> None:
        self._buckets: bool | Sequence[int] = buckets
        self._family: Family | None = None

    def pads(self, example_inputs: Sequence[Any]) -> bool:
        """Whether a part with these inputs is to be compiled for padded sizes."""
        return self._buckets is not False and any(
            isinstance(value, torch.SymInt) for value in example_inputs
        )

    def compile(
        self,
        graph: GraphModule,
        name: str,
        static: Callable[[], Run],
        options: dict[str, Any],
        backward: bool,
        origin: str = "",
    ) -> Run:
        """What runs a part; ``static`` makes what runs it for one size at a time."""
        from torch_tpu.compiler.dynamic import Family, compile_dynamic
        from torch_tpu.compiler.dynamic_sizes import Buckets

        if self._family is None:
            given = None if isinstance(self._buckets, bool) else self._buckets
            self._family = Family(Buckets(given))
        return compile_dynamic(graph, name, self._family, static, options, backward, origin)
