"""How far a result may be from the CPU's: never further than PyTorch's own comparisons allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

from torch_tpu.testing import exceptions
from torch_tpu.testing.cases import DTYPES, Case

# The tests of PyTorch that compare an operator's results on two devices, or its variants.
_COMPARISONS = {None, "TestCommon", "TestConsistency", "TestModule"}
_DEVICES = {None, "cpu", "cuda"}


@dataclass(frozen=True)
class Tolerance:
    """As in torch.testing.assert_close."""

    rtol: float
    atol: float

    def looser(self, rtol: float, atol: float) -> Tolerance:
        """The looser of both in each part."""
        return Tolerance(max(self.rtol, rtol), max(self.atol, atol))


def defaults(dtype: torch.dtype) -> Tolerance:
    """torch.testing's own tolerances for a dtype."""
    return Tolerance(*default_tolerances(dtype))


def _overrides(info: Any) -> list[Any]:
    found = []
    for decorator in info.decorators:
        if not isinstance(decorator, DecorateInfo):
            found.append((decorator, None))
        elif (
            decorator.cls_name in _COMPARISONS
            and decorator.device_type in _DEVICES
            and decorator.active_if is True
        ):
            found.extend((inner, decorator.dtypes) for inner in decorator.decorators)
    return found


def tolerance_of(info: Any, case: Case, dtype: torch.dtype) -> Tolerance:
    """The tolerance for results of `dtype` of a case.

    torch.testing's defaults, widened by the overrides of PyTorch's entry for the operator and by
    the exceptions listed in exceptions.py.
    """
    result, case_dtype = defaults(dtype), DTYPES[case.dtype]
    wider = exceptions.wider_tolerance(case.suite, case.op, case_dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return result if wider is None else result.looser(wider.rtol, wider.atol)
    for override, dtypes in _overrides(info):
        if dtypes is not None and case_dtype not in dtypes:
            continue
        if isinstance(override, toleranceOverride) and case_dtype in override.d:
            given = override.d[case_dtype]
            result = result.looser(given.rtol, given.atol)
        elif isinstance(override, precisionOverride) and case_dtype in override.d:
            result = result.looser(0.0, override.d[case_dtype])
    return result if wider is None else result.looser(wider.rtol, wider.atol)
