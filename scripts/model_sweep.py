"""Train tiny models of many architectures for one step on the device and on the CPU, and compare.

Takes a folder of tiny configurations: `tiny.py`, which builds a model and its inputs from a
configuration, and `configs/*.json`. Each model runs forward, backward and one AdamW step, and
generates a few tokens if it can; a line per model says what differed and which operators ran on the
CPU. A run can be stopped and taken up again: models already in the output file are passed over.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

# Largest difference over the largest value, for results and for gradients.
FORWARD_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 2e-3
# Gradients smaller than this everywhere are rounding noise.
NOISE = 1e-5
NEW_TOKENS = 4


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a nested output, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "to_tuple"):
        yield from tensors_in(value.to_tuple())


def moved(value: Any, device: str) -> Any:
    """A copy of nested inputs on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    return value


def difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Largest difference over the largest expected value; infinite when the types differ."""
    actual = actual.detach().cpu()
    expected = expected.detach()
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if expected.is_complex():
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
    expected, actual = expected.double(), actual.double()
    finite = torch.isfinite(expected)
    if not torch.equal(finite, torch.isfinite(actual)):
        return float("inf")
    expected, actual = expected[finite], actual[finite]
    if expected.numel() == 0:
        return 0.0
    return float((expected - actual).abs().max() / (expected.abs().max() + 1e-6))


def loss_of(output: Any) -> torch.Tensor | None:
    """The model's loss, or the sum of its results' means where it has none."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss if loss.requires_grad else None
    parts = [t.float().mean() for t in tensors_in(output) if t.requires_grad]
    return torch.stack(parts).sum() if parts else None


def generated(model: Any, inputs: dict[str, Any]) -> torch.Tensor | None:
    """Tokens, each the likeliest; None where the model does not generate any from its inputs."""
    if not getattr(model, "can_generate", bool)():
        return None
    given = {name: value for name, value in inputs.items() if "labels" not in name}
    result = model.generate(**given, max_new_tokens=NEW_TOKENS, do_sample=False)
    return result if isinstance(result, torch.Tensor) and not result.is_floating_point() else None


def compare_generation(
    model: torch.nn.Module, twin: torch.nn.Module, inputs: dict[str, Any], device: str
) -> list[str]:
    """What differs in generation, where the CPU can do it."""
    try:
        expected = generated(model, inputs)
    except Exception:
        return []
    if expected is None:
        return []
    actual = generated(twin, moved(inputs, device))
    if actual is None or not torch.equal(actual.cpu(), expected):
        return ["generates other tokens"]
    return []


def build(
    tiny: Any, name: str, folder: Path
) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, Any], Any]:
    """Model, a copy of it and inputs of a configuration, and the CPU's output for them."""
    spec = json.loads((folder / "configs" / f"{name}.json").read_text())
    torch.manual_seed(0)
    cls = tiny.get_class(spec["class"])
    config = tiny.config_for(spec["model_type"], cls, spec["shrink_level"])
    model = cls(config).eval()
    # Before it runs: some keep tensors of a forward pass.
    twin = copy.deepcopy(model)
    inputs = tiny.build_inputs(model, spec["kind"], config, labels=True)
    try:
        return model, twin, inputs, model(**inputs)
    except Exception as error:
        placeholders = tiny.fix_image_tokens(str(error), inputs)
        if placeholders:
            inputs = tiny.put_placeholders(inputs, *placeholders)
        else:
            inputs = tiny.build_inputs(model, spec["kind"], config, labels=False)
        return model, twin, inputs, model(**inputs)


def refused(loss: torch.Tensor) -> str:
    """Runs backward; the type of its error, or nothing."""
    try:
        loss.backward()
    except Exception as error:
        return type(error).__name__
    return ""


def compare_model(tiny: Any, name: str, folder: Path, device: str) -> list[str]:
    """What differs between the device and the CPU; empty when nothing does."""
    try:
        model, twin, inputs, expected = build(tiny, name, folder)
    except Exception as error:
        return [f"does not run on the CPU: {type(error).__name__}"]
    twin.to(device)
    before = dict(torch.tpu.dispatch_stats()["fallbacks"])  # type: ignore[attr-defined]
    actual = twin(**moved(inputs, device))
    found = []
    pairs = list(zip(tensors_in(expected), tensors_in(actual), strict=True))
    worst = max((difference(a, b) for a, b in pairs), default=0.0)
    if worst > FORWARD_TOLERANCE:
        found.append(f"forward differs by {worst:.2g}")
    found += compare_generation(model, twin, inputs, device)
    cpu_loss, device_loss = loss_of(expected), loss_of(actual)
    if cpu_loss is not None and device_loss is not None:
        on_cpu, on_device = refused(cpu_loss), refused(device_loss)
        if on_cpu != on_device:
            found.append(f"backward: {on_device or 'runs'}, on the CPU {on_cpu or 'it runs'}")
        for (label, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
            if (p.grad is None) != (q.grad is None):
                found.append(f"gradient of {label} is missing on one side")
            elif p.grad is not None and q.grad is not None and p.grad.abs().max() > NOISE:
                off = difference(p.grad, q.grad)
                if off > GRADIENT_TOLERANCE:
                    found.append(f"gradient of {label} differs by {off:.2g}")
        for parameters in (model.parameters(), twin.parameters()):
            torch.optim.AdamW(parameters, lr=1e-3).step()
    after = torch.tpu.dispatch_stats()["fallbacks"]  # type: ignore[attr-defined]
    found += [f"{op} on the CPU" for op, n in after.items() if n != before.get(op, 0)]
    return found


def main() -> int:
    """Run the sweep; the exit status is the number of models that differ, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder with tiny.py and configs/")
    parser.add_argument("names", nargs="*", help="configurations (default: all)")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--output", type=Path, default=Path("model_sweep.tsv"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    # Products like the CPU's, not what a TPU takes them for by default.
    torch.set_float32_matmul_precision("highest")
    sys.path.insert(0, str(options.folder))
    tiny = importlib.import_module("tiny")
    names = options.names or sorted(p.stem for p in (options.folder / "configs").glob("*.json"))
    done: dict[str, str] = {}
    if options.output.exists():
        done = dict(line.split("\t")[:2] for line in options.output.read_text().splitlines())
    for name in tqdm(names, unit="model"):
        if name in done:
            continue
        start = time.perf_counter()
        try:
            found = compare_model(tiny, name, options.folder, options.device)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = str(error).replace("\n", " ")[:200]
            found = [f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"]
        done[name] = "; ".join(found) or "same"
        with options.output.open("a") as file:
            file.write(f"{name}\t{done[name]}\t{time.perf_counter() - start:.1f} s\n")
    ran = {n: r for n, r in done.items() if not r.startswith("does not run on the CPU")}
    same = sum(result == "same" for result in ran.values())
    print(f"{same} of {len(ran)} models the same as on the CPU, without falling back to it")
    return int(same != len(ran))


if __name__ == "__main__":
    sys.exit(main())
