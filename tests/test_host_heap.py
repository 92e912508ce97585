"""The memory that programs on a CPU plugin free stays in the process, unless it is given back."""

from __future__ import annotations

import subprocess_python

# Page faults of a program with a result of 48 MB, run again and again, and what empty_cache() gives
# back.
CODE = """
    import resource
    import time
    import torch

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()

    x = torch.ones(3072, 4096, device="tpu")

    def run():
        y = x + 1
        torch.tpu.synchronize()
        del y

    counts = []
    for _ in range(25):
        before = faults()
        run()
        counts.append(faults() - before)
    # Of the best run: the system may take pages away at any time.
    print(min(counts[10:]))
    del x
    full = resident()
    # A thread of the plugin may still be about to let go of what its last run had.
    for _ in range(200):
        torch.tpu.empty_cache()
        if full - resident() > 90e6:
            break
        time.sleep(0.05)
    print(full - resident())
"""

PAGES = 3072 * 4096 * 4 // 4096


def _figures(keep: str) -> tuple[int, int]:
    faults, returned = subprocess_python.run(CODE, TORCH_TPU_CPU_KEEP_MEMORY=keep).split()
    return int(faults), int(returned)


def test_freed_memory_is_used_again() -> None:
    faults, returned = _figures("")
    assert faults < PAGES / 4
    # empty_cache() gives back what was kept: both arrays.
    assert returned > 90e6


def test_temporaries_of_any_size_are_kept() -> None:
    """200 MB, and on whatever thread of the plugin a program runs."""
    code = """
        import resource
        import torch

        x = torch.ones(1, 1024, device="tpu")

        def run():
            y = (x.expand(12800, 1024).cumsum(1) * x).flip(1)
            y.flatten().sort().values.sum().item()

        counts = []
        for _ in range(12):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            run()
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        print(min(counts[4:]))
    """
    pages = 12800 * 1024 * 4 // 4096
    assert int(subprocess_python.run(code)) < pages / 4
    assert int(subprocess_python.run(code, TORCH_TPU_CPU_KEEP_MEMORY="0")) > pages


def test_memory_is_kept_where_addresses_are_limited() -> None:
    """What cannot be reserved is not needed: programs run as before."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
        import torch
        x = torch.ones(3072, 4096, device="tpu")
        print((x + 1).sum().item())
    """
    assert float(subprocess_python.run(code)) == 2 * 3072 * 4096


def test_keeping_memory_can_be_switched_off() -> None:
    faults, _ = _figures("0")
    assert faults > 0.9 * PAGES


def test_a_setting_that_nobody_understands_is_refused() -> None:
    message = subprocess_python.run_failing(
        "import torch; torch.ones(2, device='tpu').add(1).cpu()",
        TORCH_TPU_CPU_KEEP_MEMORY="yes",
    )
    assert "TORCH_TPU_CPU_KEEP_MEMORY: expected 0 or 1, got 'yes'" in message
