"""What the compilation cache saves, and what it costs.

Every figure comes from processes of their own over a cache that begins empty. "First step" is the
end of the first optimizer step, counted from the start of the process and from the first use of
the device, which leaves out what `import torch` and the like take in any case.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "quickstart.py"
WORKLOADS = ("train", "quickstart")
# A worker's last line of output starts with it; JSON follows.
RESULT = "RESULT "
LOOKUPS = 100_000


def train_step(layers: int, width: int) -> None:
    """Builds a GPT of the given depth on the device and takes one step of its training."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(512, width)
            self.positions = nn.Embedding(64, width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, 512, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            length = tokens.shape[1]
            x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
            mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
            for block in self.blocks:
                x = block(x, src_mask=mask, is_causal=True)
            out: torch.Tensor = self.head(self.norm(x))
            return out

    torch.manual_seed(0)
    model = GPT().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(512, (4, 65)).to("tpu")
    logits = model(data[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.3f}")


def worker(workload: str, started: float) -> None:
    """Runs a workload in this process and prints what it took."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from torch_tpu import _C, tpu

    # The first optimizer of a process imports it.
    importlib.import_module("torch._dynamo")
    imported = time.time()
    first: dict[str, float] = {}

    def device_in_use() -> None:
        first.setdefault("device", time.time())

    def step_done(*_: Any) -> None:
        if "step" not in first:
            tpu.synchronize()
            first["step"] = time.time()

    register_optimizer_step_post_hook(step_done)
    if workload == "train":
        device_in_use()
        train_step(layers=12, width=128)
    else:
        # Its imports, as much as torch's, are the same with and without a cache.
        import sklearn.datasets  # noqa: F401
        import transformers  # noqa: F401

        device_in_use()
        sys.argv = [str(EXAMPLE), "--quick"]
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"the quickstart ended with {end.code}") from None
    done = time.time()
    stats = tpu.dispatch_stats()
    cache = tpu.compilation_cache.stats()
    x = torch.ones(8, 8, device="tpu")
    torch.add(x, x)

    gather, find = _C.measure_lookup(x, x, LOOKUPS)
    result = {
        "import": imported - started,
        "first_step": first["step"] - started,
        "device_to_step": first["step"] - first["device"],
        "total": done - started,
        "compiles": stats["compiles"],
        "loads": stats["loads"],
        "compile_seconds": stats["compile_seconds"],
        "load_seconds": stats["load_seconds"],
        "cache": cache,
        "gather_us": gather * 1e6,
        "find_us": find * 1e6,
    }
    print(RESULT + json.dumps(result, default=str))


class Folder:
    """A cache of its own in both shared tiers, removed in the end."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="torch_tpu_cache_"))
        self.name = f"benchmark-{os.getpid()}-{self.root.name[-8:]}"

    def environment(self) -> dict[str, str]:
        """The variables of a process that uses it."""
        return {
            **os.environ,
            "TORCH_TPU_TIER2_COMPILATION_CACHE": self.name,
            "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(self.root / "tier3"),
        }

    @property
    def machine(self) -> Path:
        """The folder of the machine's tier."""
        return Path("/dev/shm") / f"torch_tpu-{os.geteuid()}" / self.name

    def remove(self) -> None:
        """Deletes both tiers."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.machine, ignore_errors=True)


def start(workload: str, folder: Folder) -> subprocess.Popen[str]:
    """Starts a worker."""
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", workload, "--started", str(time.time())],
        env=folder.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for a worker and returns what it measured."""
    out, err = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith(RESULT)]
    if process.returncode or not lines:
        raise SystemExit(f"a worker failed ({process.returncode}):\n{out}\n{err}")
    result: dict[str, Any] = json.loads(lines[-1][len(RESULT) :])
    return result


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under a header, numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))


def measure_start(workload: str, rounds: int) -> None:
    """Cold against warm: the first process over an empty cache, and later ones."""
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        folder = Folder()
        try:
            results.setdefault("cold", []).append(finish(start(workload, folder)))
            results.setdefault("warm", []).append(finish(start(workload, folder)))
            # As after a restart of the machine: only the persistent tier is left.
            shutil.rmtree(folder.machine, ignore_errors=True)
            results.setdefault("warm, tier 3 only", []).append(finish(start(workload, folder)))
        finally:
            folder.remove()

    def median(kind: str, what: str) -> float:
        return statistics.median(result[what] for result in results[kind])

    rows = []
    for kind in results:
        row = [kind]
        for what in ("import", "first_step", "device_to_step", "total"):
            row.append(f"{median(kind, what):.2f}")
        row.append(f"{median(kind, 'device_to_step') / median('cold', 'device_to_step'):.3f}")
        row.append(f"{median(kind, 'first_step') / median('cold', 'first_step'):.3f}")
        row += [
            str(max(result[what] for result in results[kind])) for what in ("compiles", "loads")
        ]
        rows.append(row)
    print(f"\n{workload}: seconds, medians of {rounds} round(s)")
    print_table(
        [
            "cache",
            "import torch",
            "start to first step",
            "device to first step",
            "whole run",
            "device to step / cold",
            "start to step / cold",
            "compiled",
            "loaded",
        ],
        rows,
    )
    warm = results["warm"]
    machine = [result["cache"]["machine"] for result in warm]
    ratios = [
        (tier["read_seconds"] + result["load_seconds"]) / result["load_seconds"]
        for tier, result in zip(machine, warm, strict=True)
        if result["load_seconds"] > 0
    ]
    print(
        f"\ntier 1 hit: {statistics.median(r['find_us'] for r in warm):.3f} us to find the program"
        f" (and {statistics.median(r['gather_us'] for r in warm):.3f} us to gather the signature)"
    )
    print(
        f"tier 2 load / the plugin's own deserialisation: {statistics.median(ratios):.2f} "
        "(every read of the tier counted, records of calls too)"
    )


def measure_processes(count: int) -> None:
    """Processes that start at once on an empty cache."""
    folder = Folder()
    try:
        finish(start("train", folder))
        distinct = finish(start("train", folder))["loads"]
        folder.remove()
        folder = Folder()
        results = [finish(p) for p in [start("train", folder) for _ in range(count)]]
    finally:
        folder.remove()
    compiled = sum(result["compiles"] for result in results)
    print(
        f"\n{count} processes at once on an empty cache: {compiled} programs compiled in total, "
        f"{distinct} different ones needed by each"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--only", choices=(*WORKLOADS, "processes"), help="one part instead of all")
    parser.add_argument("--worker", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.worker, options.started)
        return 0
    for workload in WORKLOADS:
        if options.only in (None, workload):
            measure_start(workload, options.rounds)
    if options.only in (None, "processes"):
        measure_processes(8)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
