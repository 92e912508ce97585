"""What fusing operators brings: DEFER_AND_FUSE beside strict mode, in one run.

The two modes take turns on the same work, a few runs each, and a turn ends when the device has
done all of it; the table shows medians, and the median of the ratios of turns that followed each
other, which holds on a busy machine too, where times do not. Then: the cost of recording an
operator, the peak of live device bytes of a training step and of its programs compiled for a TPU,
and the number of distinct programs that a shallow and a deep model take.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import torch_tpu

VOCABULARY = 512
STRICT, FUSED = "strict", "fused"
# Seconds between two turns.
PAUSE = 0.05
# Runs in a turn. More than one, because a step that has read its loss still computes gradients
# while the next one begins.
RUNS = 3

# Does the work once and waits for its result.
Work = Callable[[], None]


class Gpt(nn.Module):
    """A decoder of PyTorch's own transformer layers."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        """Random weights."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                4,
                4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next tokens."""
        length, device = tokens.shape[1], tokens.device
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def train_step(layers: int, width: int, length: int, batch: int) -> Work:
    """A training step: forward, backward, clipped gradients, AdamW; reads the loss."""
    torch.manual_seed(0)
    model = Gpt(layers, width, length).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(VOCABULARY, (batch, length + 1)).to("tpu")

    def step() -> None:
        optimizer.zero_grad()
        logits = model(data[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def generate() -> Work:
    """Twenty tokens from a tiny Qwen3 of transformers, with a static key and value cache."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
    )
    model: Any = Qwen3ForCausalLM(config).eval().to("tpu")
    tokens = torch.randint(VOCABULARY, (1, 12)).to("tpu")

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=20,
                min_new_tokens=20,
                do_sample=False,
                cache_implementation="static",
                disable_compile=True,
                pad_token_id=0,
            ).cpu()

    return run


def elementwise_chain() -> Work:
    """Twenty elementwise operators on 4096 x 1024 float32."""
    x = torch.rand(4096, 1024).to("tpu")

    def run() -> None:
        y = x
        for k in range(5):
            y = ((y + 0.5) * (0.9 + 0.01 * k)).clamp(max=3.0) - 0.25
        y[0, 0].item()

    return run


@dataclass(frozen=True)
class Measure:
    """A piece of work, and how often the fused mode should be as fast."""

    name: str
    make: Callable[[], Work]
    target: float


MEASURES = {
    "small": Measure("GPT step, 4 x 64, 4 x 32 tokens", lambda: train_step(4, 64, 32, 4), 1.5),
    "large": Measure("GPT step, 4 x 256, 4 x 128 tokens", lambda: train_step(4, 256, 128, 4), 1.5),
    "generate": Measure("generate, tiny Qwen3, 20 tokens", generate, 1.5),
    "chain": Measure("20 elementwise, 4096 x 1024", elementwise_chain, 3.0),
}


PARTS = ("recording", "memory", "hbm", "depth")
TOPOLOGY = "v5e:2x2"


def in_mode(mode: str) -> Any:
    """The context of a mode."""
    modes = torch.tpu.EagerMode  # type: ignore[attr-defined]
    chosen = modes.DEFER_NEVER if mode == STRICT else modes.DEFER_AND_FUSE
    return torch.tpu.set_eager_mode(chosen)  # type: ignore[attr-defined]


def compare(measure: Measure, rounds: int, warm: int) -> tuple[float, float, float]:
    """Median seconds a run of strict and fused, and the median ratio of neighbouring turns."""
    tpu = torch.tpu  # type: ignore[attr-defined]
    work = {mode: measure.make() for mode in (STRICT, FUSED)}
    for mode, run in work.items():
        with in_mode(mode):
            for _ in range(warm):
                run()
            tpu.synchronize()
    times: dict[str, list[float]] = {STRICT: [], FUSED: []}
    for turn in range(rounds):
        for mode in (STRICT, FUSED) if turn % 2 == 0 else (FUSED, STRICT):
            gc.collect()
            time.sleep(PAUSE)
            with in_mode(mode):
                started = time.perf_counter()
                for _ in range(RUNS):
                    work[mode]()
                tpu.synchronize()
                times[mode].append((time.perf_counter() - started) / RUNS)
    ratios = [s / f for s, f in zip(times[STRICT], times[FUSED], strict=True)]
    return (
        statistics.median(times[STRICT]),
        statistics.median(times[FUSED]),
        statistics.median(ratios),
    )


def recording_cost(rounds: int) -> dict[str, float]:
    """Median microseconds until an operator is recorded.

    First in an order of operators without repetitions, in C++ and from Python: nothing is run
    meanwhile. Then chains of one operator, which are cut and run every sixteen.
    """
    from torch_tpu import _C

    x = torch.ones(8, 8, device="tpu")
    tracked = torch.ones(8, 8, device="tpu", requires_grad=True)
    count = 500
    order = random.Random(1)
    operators = [
        order.choice((torch.add, torch.mul, torch.maximum, torch.minimum)) for _ in range(count)
    ]

    def mixed() -> None:
        y = x
        for operator in operators:
            y = operator(y, x)

    def chain(step: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor) -> Work:
        def run() -> None:
            y = start
            for _ in range(count):
                y = step(y)

        return run

    def microseconds(run: Work) -> float:
        times = []
        for _ in range(rounds):
            torch.tpu.synchronize()  # type: ignore[attr-defined]
            started = time.perf_counter()
            run()
            times.append((time.perf_counter() - started) / count * 1e6)
        return statistics.median(times)

    with in_mode(FUSED):
        native = [_C.measure_recording(x, count) * 1e6 for _ in range(rounds)]
        return {
            "mixed, in C++": statistics.median(native),
            "mixed": microseconds(mixed),
            "add": microseconds(chain(lambda y: y + x, x)),
            "multiply by a number": microseconds(chain(lambda y: y * 1.0001, x)),
            "add_ in place": microseconds(chain(lambda y: y.add_(x), x.clone())),
            "add, with autograd": microseconds(chain(lambda y: y + x, tracked)),
        }


def peak_bytes(mode: str) -> tuple[int, int]:
    """Live device bytes between two training steps, and their peak inside one."""
    tpu = torch.tpu  # type: ignore[attr-defined]
    step = train_step(4, 256, 128, 4)
    with in_mode(mode):
        for _ in range(4):
            step()
        gc.collect()
        tpu.synchronize()
        between = tpu.memory_allocated()
        tpu.reset_peak_memory_stats()
        for _ in range(3):
            step()
        tpu.synchronize()
        return between, tpu.max_memory_allocated()


@dataclass(frozen=True)
class HbmUse:
    """A training step's memory on a TPU in bytes, by the compiler and the arrays that are live."""

    arrays: int
    """The most at one time in arrays and in the temporary memory of a program."""
    code: int
    """Of all programs of the step: they stay loaded."""
    with_vector_memory: int
    """As `arrays`, but with a program's peak as the compiler reports it: it also counts what lies
    in the vector memory (128 MiB of its own on a v5e), as copies of arguments."""


def hbm_use(mode: str, topology: str) -> HbmUse:
    """Compiles the programs of a training step for a TPU, and follows its memory through them.

    Which arrays are live when a program starts is taken from a run on this machine's device.
    Products have the precision that is the default of the device.
    """
    from torch_tpu import _C

    tpu = torch.tpu  # type: ignore[attr-defined]
    step = train_step(4, 256, 128, 4)
    # As for a TPU: this machine's processor would get the passes written out.
    _C.set_precision_emulated(False)
    try:
        with in_mode(mode), tpu.precision("medium"):
            for _ in range(4):
                step()
            gc.collect()
            tpu.synchronize()
            with tpu.explain() as explanation:
                step()
                tpu.synchronize()
    finally:
        _C.set_precision_emulated(None)
    compiled: dict[str, Any] = {}
    arrays = peak = 0
    for program in explanation.programs:
        text = program.stablehlo
        if text not in compiled:
            compiled[text] = tpu.aot.compile_stablehlo(text, topology=topology).memory
        memory = compiled[text]
        if memory.peak is None:
            raise RuntimeError(f"the compiler for {topology} does not tell the peak of a program")
        results = memory.outputs - memory.aliased
        arrays = max(arrays, program.live_bytes + results + memory.temporaries)
        peak = max(peak, program.live_bytes - memory.arguments + memory.peak)
    code = sum(m.generated_code for m in compiled.values())
    return HbmUse(arrays, code, with_vector_memory=peak)


@dataclass(frozen=True)
class Depth:
    """What four training steps of a model take to compile."""

    operators: int
    """Recorded in a step."""
    distinct: int
    """Programs."""
    dispatched: int
    """Runs of programs, in all steps."""
    largest: int
    """Characters of the longest program."""
    characters: int
    """Of all distinct programs."""
    compile_seconds: float
    """As the compiler's threads took them, added up: more than passed where several compiled."""
    processor_seconds: float
    """Of the process in these steps: compiling, and a little running."""


def programs_of_depth(layers: int, width: int) -> Depth:
    """Trains a model that no program has been compiled for yet."""
    tpu = torch.tpu  # type: ignore[attr-defined]
    with in_mode(FUSED):
        step = train_step(layers, width, 32, 4)
        tpu.synchronize()
        started = time.process_time()
        with tpu.explain() as explanation:
            for _ in range(3):
                step()
            before = tpu.dispatch_stats()["ops"]
            step()
            operators = tpu.dispatch_stats()["ops"] - before
        spent = time.process_time() - started
    programs = explanation.programs
    new = [p for p in programs if not p.known]
    sizes = [len(p.stablehlo) for p in new]
    seconds = sum(p.compile_seconds for p in new)
    return Depth(operators, len(new), len(programs), max(sizes), sum(sizes), seconds, spent)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows in columns, the first one as a heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for index, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))
        if index == 0:
            print("  ".join("-" * width for width in widths))
    print(flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each mode (default: 15)")
    parser.add_argument("--warm", type=int, default=4, help="runs before that (default: 4)")
    parser.add_argument(
        "--only",
        choices=(*MEASURES, *PARTS),
        action="append",
        help="run this part (may be repeated)",
    )
    options = parser.parse_args(arguments)
    wanted = options.only or (*MEASURES, *PARTS)
    warnings.simplefilter("ignore", torch_tpu.PerformanceWarning)
    torch.set_float32_matmul_precision("highest")
    print(f"torch {torch.__version__}, medians of {options.rounds} rounds\n", flush=True)

    rows = [["ms", STRICT, FUSED, f"{STRICT} / {FUSED}", "target"]]
    for name in wanted:
        if name not in MEASURES:
            continue
        measure = MEASURES[name]
        strict, fused, ratio = compare(measure, options.rounds, options.warm)
        figures = f"{strict * 1e3:.2f}", f"{fused * 1e3:.2f}", f"{ratio:.2f}"
        rows.append([measure.name, *figures, f">= {measure.target}"])
    if len(rows) > 1:
        print_table(rows)
    if "recording" in wanted:
        rows = [["recording an operator, 8 x 8", "us"]]
        rows += [[what, f"{us:.2f}"] for what, us in recording_cost(options.rounds).items()]
        print_table(rows)
    if "memory" in wanted:
        rows = [["live bytes, GPT 4 x 256, MiB", "between steps", "peak"]]
        for mode in (STRICT, FUSED):
            rows.append([mode, *(f"{n / 2**20:.1f}" for n in peak_bytes(mode))])
        print_table(rows)
    if "hbm" in wanted:
        rows = [[f"compiled for {TOPOLOGY}, GPT 4 x 256, MiB", STRICT, FUSED]]
        uses = [hbm_use(mode, TOPOLOGY) for mode in (STRICT, FUSED)]
        rows.append(["arrays and temporaries", *(f"{u.arrays / 2**20:.1f}" for u in uses)])
        rows.append(["code of all programs", *(f"{u.code / 2**20:.1f}" for u in uses)])
        rows.append(["both", *(f"{(u.arrays + u.code) / 2**20:.1f}" for u in uses)])
        rows.append(
            ["with vector memory", *(f"{u.with_vector_memory / 2**20:.1f}" for u in uses)],
        )
        print_table(rows)
    if "depth" in wanted:
        titles = "operators a step", "distinct programs", "dispatched", "largest, kB", "all, kB"
        rows = [["layers", *titles, "compile s", "processor s"]]
        # Widths of their own: neither has programs that the other brought.
        for layers, width in ((12, 64), (48, 72)):
            d = programs_of_depth(layers, width)
            counts = (
                d.operators,
                d.distinct,
                d.dispatched,
                d.largest // 1000,
                d.characters // 1000,
            )
            times = f"{d.compile_seconds:.1f}", f"{d.processor_seconds:.1f}"
            rows.append([str(layers), *map(str, counts), *times])
        print_table(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
