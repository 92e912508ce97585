"""What programs seldom do or should not do: odd values, wrong calls, threads at odds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import subprocess_python
import torch
from compare import assert_same, dispatch_stats

Call = Callable[[str], torch.Tensor]

# Within int64's range, where PyTorch's CPU kernels wrap around.
BEYOND = [0.0, -0.0, 1.5, -1.5, 127.0, 128.0, 255.0, 256.0, -129.0, 300.0, 32768.0, -65537.0]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", [torch.uint8, torch.int8, torch.int16, torch.uint16])
def test_floats_wrap_around_in_narrow_integers(
    device: torch.device, source: torch.dtype, target: torch.dtype
) -> None:
    values = torch.tensor(BEYOND).clamp(-60000, 60000).to(source)
    assert_same(values.to(device).to(target), values.to(target))


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_negative_floats_wrap_around_in_uint32(device: torch.device, source: torch.dtype) -> None:
    values = torch.tensor([*BEYOND, 4e9], dtype=source)
    assert_same(values.to(device).to(torch.uint32), values.to(torch.uint32))


@pytest.mark.parametrize("source", [*FLOATS, torch.int32])
def test_float8_saturates(device: torch.device, source: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 300.0, 448.0, 460.0, 500.0, 30000.0, -30000.0]).to(source)
    on_device = values.to(device).to(torch.float8_e4m3fn)
    assert_same(on_device.float(), values.to(torch.float8_e4m3fn).float())


def test_infinities_in_float8(device: torch.device) -> None:
    values = torch.tensor([float("inf"), float("-inf"), float("nan")])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert_same(values.to(device).to(dtype).float(), values.to(dtype).float())


def floats(device: str) -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0]).to(device)


def integers(device: str) -> torch.Tensor:
    return torch.tensor([1, 2, 3]).to(device)


WRONG: dict[str, Call] = {
    "float - bool": lambda d: floats(d) - (floats(d) > 1),
    "integer - True": lambda d: integers(d) - True,
    "1 - bool": lambda d: 1 - (floats(d) > 1),
    "bool - bool": lambda d: (floats(d) > 1) - (floats(d) > 2),
    "add integers, alpha 1.5": lambda d: torch.add(integers(d), integers(d), alpha=1.5),
    "add bools, alpha 2.0": lambda d: torch.add(floats(d) > 1, floats(d) > 1, alpha=2.0),
    "sub integers, alpha 1.5": lambda d: torch.sub(integers(d), integers(d), alpha=1.5),
    "heaviside dtypes": lambda d: torch.heaviside(floats(d), integers(d)),
    "complex dtypes": lambda d: torch.complex(floats(d), floats(d).double()),
    "polar dtypes": lambda d: torch.polar(floats(d), floats(d).double()),
    "gcd of floats": lambda d: torch.gcd(floats(d), floats(d)),
    "float & float": lambda d: floats(d) & floats(d),
    "softmax of integers": lambda d: integers(d).softmax(0),
    "max along nothing": lambda d: torch.zeros(2, 0, device=d).max(1).values,
    "min along nothing": lambda d: torch.zeros(0, 2, device=d).min(0).values,
    "fill int8 with 300": lambda d: torch.zeros(2, dtype=torch.int8, device=d).fill_(300),
    "fill integers with NaN": lambda d: integers(d).fill_(float("nan")),
    "full int8 of 300": lambda d: torch.full((2,), 300, dtype=torch.int8, device=d),
    "full float32 of 1e300": lambda d: torch.full((2,), 1e300, device=d),
    "full_like float16 of 1e6": lambda d: torch.full_like(floats(d), 1e6, dtype=torch.float16),
    "masked_fill float16 with -1e9": lambda d: floats(d).half().masked_fill(floats(d) > 1, -1e9),
    "copy of empty shapes": lambda d: torch.zeros(0, 3, device=d).copy_(
        torch.zeros(3, 0, device=d)
    ),
    "copy of one into nothing": lambda d: torch.zeros(0, device=d).copy_(
        torch.zeros(1, 1, device=d)
    ),
    "host index": lambda d: floats(d)[torch.tensor([0, 5])],
    "write at a host index": lambda d: floats(d).index_put_(
        (torch.tensor([3]),), torch.zeros(1, device=d)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_fail_as_on_the_cpu(device: torch.device, name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        WRONG[name]("cpu")
    with pytest.raises(type(expected.value)) as actual:
        WRONG[name](str(device))
    assert type(actual.value) is type(expected.value)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_reading_and_writing_one_tensor_in_many_threads() -> None:
    """A buffer one thread reads is not given away by another one's in-place write."""
    subprocess_python.run(
        """
        import threading
        import torch

        shared, errors = torch.zeros(64, device="tpu"), []

        def work(writes):
            try:
                for _ in range(300):
                    if writes:
                        shared.add_(1)
                    else:
                        value = (shared + 1).cpu()
                        assert (value == value[0]).all(), value
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert (shared == shared[0]).all()
        """
    )


def test_backward_right_before_the_end() -> None:
    """The device's autograd thread is done with Python when the interpreter goes."""
    for _ in range(4):
        subprocess_python.run_quietly(
            """
            import torch

            model = torch.nn.Linear(4, 3, device="tpu")
            for _ in range(3):
                model(torch.ones(3, 4, device="tpu")).pow(2).sum().backward()
            """
        )


@pytest.mark.single_operators
def test_what_a_failed_call_was_to_overwrite_stays_usable() -> None:
    """Running statistics are updated in place; there is no room for the call's results."""
    subprocess_python.run(
        """
        import torch

        norm = torch.nn.BatchNorm1d(1 << 10, device="tpu")
        small, large = (torch.ones(n, 1 << 10, device="tpu") for n in (4, 4 << 10))
        norm(small)
        try:
            norm(large)
        except torch.OutOfMemoryError:
            assert torch.equal(norm.running_mean, torch.full_like(norm.running_mean, 0.1))
            norm(small)
        else:
            raise AssertionError("there was room")
        """,
        TORCH_TPU_MEMORY_LIMIT="25M",
    )


@pytest.mark.single_operators
def test_changing_numbers_take_no_memory_and_no_programs(device: torch.device) -> None:
    x = torch.ones(64, device=device)
    y = x * 0.5

    def counts() -> tuple[int, int]:
        stats = dispatch_stats()
        allocated = torch.tpu.memory_allocated()  # type: ignore[attr-defined]
        return allocated, stats["compiles"] + stats["loads"]

    before = counts()
    for i in range(200):
        y = x * (i + 1.5)
    assert counts() == before
    assert_same(y, torch.full((64,), 200.5))
