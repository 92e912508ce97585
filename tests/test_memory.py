"""Memory statistics and limits."""

from __future__ import annotations

import gc

import pytest
import subprocess_python
import torch
from torch import nn

tpu = torch.tpu  # type: ignore[attr-defined]
MIB = 2**20


@pytest.fixture(autouse=True)
def start_from_here() -> None:
    gc.collect()
    tpu.synchronize()
    tpu.reset_peak_memory_stats()


def filled(mebibytes: int) -> torch.Tensor:
    return torch.full((mebibytes * MIB // 4,), 1.0, device="tpu")


def test_allocated_follows_the_tensors() -> None:
    filled(1)
    before = tpu.memory_allocated()
    x = filled(3)
    assert tpu.memory_allocated() - before == 3 * MIB
    view = x[5:]
    del x
    assert tpu.memory_allocated() - before == 3 * MIB
    del view
    assert tpu.memory_allocated() == before
    assert tpu.max_memory_allocated() >= before + 3 * MIB
    tpu.reset_peak_memory_stats()
    assert tpu.max_memory_allocated() == before


def test_empty_takes_no_memory() -> None:
    before = tpu.memory_allocated()
    x = torch.empty(64 * MIB, device="tpu")
    assert tpu.memory_allocated() == before
    del x


def test_clones_share_memory_until_written() -> None:
    x = filled(2)
    before = tpu.memory_allocated()
    y = x.clone()
    assert tpu.memory_allocated() == before
    y += x[0]
    assert tpu.memory_allocated() - before == 2 * MIB
    assert x[0].item() == 1 and y[0].item() == 2


def test_in_place_updates_take_no_more() -> None:
    x = filled(8)
    x.mul_(1.5).add_(2.0)
    tpu.reset_peak_memory_stats()
    before = tpu.memory_allocated()
    for _ in range(5):
        x.mul_(1.5).add_(2.0)
    assert tpu.memory_allocated() == tpu.max_memory_allocated() == before
    held = x.detach().clone()  # now the old value is needed as well
    x.mul_(1.5)
    assert tpu.memory_allocated() - before == 8 * MIB
    del held
    assert tpu.memory_allocated() == before


def test_storage_resize_frees() -> None:
    x = filled(4)
    before = tpu.memory_allocated()
    x.untyped_storage().resize_(0)
    assert before - tpu.memory_allocated() == 4 * MIB


def test_module_and_gradients_are_freed() -> None:
    before = tpu.memory_allocated()
    model = nn.Linear(512, 512).to("tpu")
    model(torch.ones(4, 512, device="tpu")).sum().backward()
    assert tpu.memory_allocated() - before >= 2 * 512 * 512 * 4
    model.zero_grad()
    del model
    gc.collect()
    assert tpu.memory_allocated() - before < 512 * 512 * 4


def test_statistics_have_the_names_of_torch_accelerator() -> None:
    x = filled(1)
    stats = tpu.memory_stats()
    for area in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        for figure in ("current", "peak", "allocated", "freed"):
            assert stats[f"{area}.all.{figure}"] >= 0
    assert stats["allocated_bytes.all.current"] == tpu.memory_allocated() >= x.nbytes
    assert stats["allocation.all.current"] >= 1
    assert stats["num_alloc_retries"] == 0 and stats["num_ooms"] >= 0
    assert stats == torch.accelerator.memory_stats()


def test_a_summary_to_print() -> None:
    x = filled(1)
    lines = tpu.memory_summary().splitlines()
    assert lines[0].startswith("Memory of tpu:0: ") and lines[0].endswith(" in use")
    assert [line.split()[0] for line in lines[2:4]] == ["bytes", "arrays"]
    count = tpu.memory_stats()["allocation.all.current"]
    assert lines[3].split()[1] == f"{count:,}"
    assert tpu.memory_summary(x.device, abbreviated=True).splitlines()[0] == lines[0]


def test_what_was_freed_is_counted_from_a_reset_on() -> None:
    held = filled(1)
    torch.accelerator.reset_accumulated_memory_stats()
    assert tpu.memory_stats()["allocated_bytes.all.freed"] == 0
    dropped = filled(1)
    tpu.synchronize()  # the deferred mode does not compute what nobody holds
    nbytes = dropped.nbytes
    del dropped
    stats = tpu.memory_stats()
    assert stats["allocated_bytes.all.freed"] == stats["allocated_bytes.all.allocated"] >= nbytes
    del held
    assert tpu.memory_stats()["allocated_bytes.all.freed"] >= 2 * nbytes


def test_torch_accelerator_agrees() -> None:
    x = filled(1)
    memory = torch.accelerator
    assert memory.memory_allocated() == tpu.memory_allocated("tpu:0") >= x.nbytes
    assert memory.max_memory_allocated(0) == tpu.max_memory_allocated()
    assert memory.memory_reserved() == tpu.memory_reserved() == tpu.memory_allocated()
    assert memory.max_memory_reserved() == tpu.max_memory_reserved()
    free, total = memory.get_memory_info()
    assert (free, total) == tpu.mem_get_info() == tpu.get_memory_info(0)
    assert free == total - tpu.memory_allocated()
    assert total == tpu.get_device_properties().total_memory
    memory.empty_cache()
    tpu.empty_cache()
    memory.reset_accumulated_memory_stats()
    assert tpu.memory_stats()["allocated_bytes.all.allocated"] == 0
    memory.reset_peak_memory_stats()


@pytest.mark.single_operators
def test_set_per_process_memory_fraction() -> None:
    total = tpu.get_device_properties().total_memory
    tpu.set_per_process_memory_fraction((tpu.memory_allocated() + 16 * MIB) / total)
    try:
        assert tpu.get_device_properties().total_memory < total
        x = filled(4)
        before = tpu.memory_stats()["num_ooms"]
        with pytest.raises(torch.OutOfMemoryError, match="memory_fraction"):
            torch.full((64 * MIB,), 2.0, device="tpu")
        assert tpu.memory_stats()["num_ooms"] == before + 1
        assert (x + 1)[0].item() == 2.0
    finally:
        tpu.set_per_process_memory_fraction(1.0)
    assert tpu.get_device_properties().total_memory == total
    for wrong in (0.0, -1.0, 1.5):
        with pytest.raises(ValueError, match="expected a fraction"):
            tpu.set_per_process_memory_fraction(wrong)


@pytest.mark.single_operators
def test_memory_limit_of_the_environment() -> None:
    out = subprocess_python.run(
        """
        import torch
        x = torch.ones(256, 1024, device="tpu")  # a MiB
        held = [x + i for i in range(6)]
        for attempt in (
            lambda: [held.append(x * i) for i in range(40)],
            lambda: torch.ones(1 << 22).to("tpu"),
            lambda: torch.zeros(1 << 20, dtype=torch.float64, device="tpu"),
        ):
            try:
                attempt()
            except torch.OutOfMemoryError as error:
                text = str(error)
                assert "tpu:0 out of memory" in text, text
                assert " x f32[256, 1024] = " in text, text
                print("refused")
        held.clear()
        print((x * 3).sum().item(), torch.tpu.mem_get_info()[1])
        """,
        TORCH_TPU_MEMORY_LIMIT="16M",
    )
    assert out == f"refused\nrefused\nrefused\n{3 * 256 * 1024.0} {16 * MIB}\n"


@pytest.mark.parametrize(("text", "bytes_"), [("1000", 1000), ("1.5G", 1610612736), ("2k", 2048)])
def test_memory_limit_units(text: str, bytes_: int) -> None:
    code = "import torch; print(torch.tpu.get_device_properties().total_memory)"
    assert subprocess_python.run(code, TORCH_TPU_MEMORY_LIMIT=text) == f"{bytes_}\n"


@pytest.mark.parametrize("text", ["much", "-5", "0", "5 apples"])
def test_memory_limit_that_is_not_understood(text: str) -> None:
    code = "import torch; torch.ones(2, device='tpu') + 1"
    error = subprocess_python.run_failing(code, TORCH_TPU_MEMORY_LIMIT=text)
    assert "TORCH_TPU_MEMORY_LIMIT" in error and text in error
