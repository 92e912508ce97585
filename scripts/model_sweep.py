"""Train tiny models of many architectures for one step on the device and on the CPU, and compare.

Takes a folder of tiny configurations: `tiny.py`, which builds a model and its inputs from a
configuration, and `configs/*.json`. Each model runs forward, backward and one AdamW step, and
generates a few tokens if it can; a line per model says what differed and which operators ran on the
CPU. Random numbers are drawn on the CPU for both. What differs is tried again, with the first of
equal values in `topk` on both sides and then in float64, and the line says which of these made it
the same. A run can be stopped and taken up again: models already in the output file are passed
over.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

# Largest difference over the largest value, for results and for gradients.
FORWARD_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 2e-3
SAME, FELL_BACK = "same", " on the CPU"
STEP_TOLERANCE = 1e-5
# Gradients smaller everywhere than this part of the model's largest are rounding noise.
NOISE = 1e-5
NEW_TOKENS = 4


DRAWN = {
    *(torch.bernoulli, torch.multinomial, torch.normal, torch.poisson, torch.randperm),
    *(torch.rand, torch.rand_like, torch.randint, torch.randint_like, torch.randn),
    torch.randn_like,
}
DRAWN_INTO = {
    getattr(torch.Tensor, name)
    for name in ("bernoulli_", "exponential_", "normal_", "random_", "uniform_")
}


class DrawnOnCpu(TorchFunctionMode):
    """Draws random numbers on the CPU, so that with the same seed both sides have the same."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the function, on the CPU if it draws numbers from the default generator."""
        kwargs = dict(kwargs or {})
        if kwargs.get("generator") is None:
            if function in DRAWN:
                source = next(tensors_in((args, kwargs)), None)
                device = kwargs.pop("device", None) or (
                    torch.get_default_device() if source is None else source.device
                )
                return function(*moved(args, "cpu"), **moved(kwargs, "cpu")).to(device)
            if function in DRAWN_INTO:
                drawn = function(args[0].detach().cpu(), *args[1:], **kwargs)
                return args[0].copy_(drawn)
        return function(*args, **kwargs)


class EqualsInOrder(TorchFunctionMode):
    """Takes the first of equal values in `topk`, where PyTorch leaves it open which it takes."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the function, `topk` as a stable sort."""
        if function not in (torch.topk, torch.Tensor.topk):
            return function(*args, **(kwargs or {}))

        def topk(
            x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any, **__: Any
        ) -> Any:
            values, indices = x.sort(dim=dim, descending=largest, stable=True)
            return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

        return topk(*args, **(kwargs or {}))


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


def mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """A copy of nested inputs with a function applied to their tensors."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(function, item) for item in value)
    return value


def moved(value: Any, device: str) -> Any:
    """A copy of nested inputs on a device."""
    return mapped(lambda tensor: tensor.to(device), value)


def doubled(value: Any) -> Any:
    """A copy of nested inputs with what is floating point in float64."""
    return mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, value)


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


def weighed(result: torch.Tensor) -> torch.Tensor:
    """A mean of a result; with equal weights it had no gradient behind a last normalization."""
    weights = torch.arange(result.numel(), dtype=torch.float32).cos().view(result.shape)
    return (result.float() * weights.to(result.device)).mean()


def loss_of(output: Any) -> torch.Tensor | None:
    """The model's loss, or a sum of means of its results where it has none."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss if loss.requires_grad else None
    parts = [weighed(t) for t in tensors_in(output) if t.requires_grad]
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
        # On a copy: some write into their inputs, which backward may need.
        expected = generated(model, copy.deepcopy(inputs))
    except Exception:
        return []
    if expected is None:
        return []
    actual = generated(twin, moved(inputs, device))
    if actual is None or not torch.equal(actual.cpu(), expected):
        return ["generates other tokens"]
    return []


def build(
    tiny: Any, name: str, folder: Path, double: bool = False
) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, Any], Any]:
    """Model, a copy of it and inputs of a configuration, and the CPU's output for them."""
    spec = json.loads((folder / "configs" / f"{name}.json").read_text())
    torch.manual_seed(0)
    cls = tiny.get_class(spec["class"])
    config = tiny.config_for(spec["model_type"], cls, spec["shrink_level"])
    model = cls(config).eval()
    given = doubled if double else copy.deepcopy
    if double:
        model.double()
    # Before it runs: some keep tensors of a forward pass.
    twin = copy.deepcopy(model)
    failure: Exception = RuntimeError("no inputs were tried")
    for labels in (True, False):
        inputs = given(tiny.build_inputs(model, spec["kind"], config, labels=labels))
        for _ in range(2):
            try:
                with torch.random.fork_rng(devices=[]):  # inputs drawn later stay the same
                    torch.manual_seed(1)
                    return model, twin, inputs, model(**inputs)
            except Exception as error:
                failure = error
            placeholders = tiny.fix_image_tokens(str(failure), inputs)
            if not placeholders:
                break
            inputs = given(tiny.put_placeholders(inputs, *placeholders))
    raise failure


def refused(loss: torch.Tensor) -> str:
    """Runs backward; the type of its error, or nothing."""
    try:
        loss.backward()
    except Exception as error:
        return type(error).__name__
    return ""


def compare_gradients(model: torch.nn.Module, twin: torch.nn.Module) -> list[str]:
    """Which gradients differ."""
    found = []
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    largest = max((float(g.abs().max()) for g in gradients if g.numel() > 0), default=0.0)
    noise = max(NOISE * min(1.0, largest), 1e-7)
    for (label, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        if (p.grad is None) != (q.grad is None):
            found.append(f"gradient of {label} is missing on one side")
        elif p.grad is not None and q.grad is not None and (p.grad.abs() > noise).any():
            off = difference(p.grad, q.grad)
            if off > GRADIENT_TOLERANCE:
                found.append(f"gradient of {label} differs by {off:.2g}")
    return found


def compare_step(model: torch.nn.Module, twin: torch.nn.Module) -> list[str]:
    """Which parameters differ after a step of AdamW with the CPU's gradients on both sides."""
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        if p.grad is not None and q.grad is not None:
            q.grad = p.grad.to(q.device)
    for parameters in (model.parameters(), twin.parameters()):
        torch.optim.AdamW(parameters, lr=1e-3).step()
    pairs = zip(model.named_parameters(), twin.parameters(), strict=True)
    return [
        f"{label} differs after the step"
        for (label, p), q in pairs
        if difference(p, q) > STEP_TOLERANCE
    ]


def compare_model(
    tiny: Any, name: str, folder: Path, device: str, double: bool = False
) -> list[str]:
    """What differs between the device and the CPU; empty when nothing does."""
    try:
        model, twin, inputs, expected = build(tiny, name, folder, double)
    except Exception as error:
        return [f"does not run on the CPU: {type(error).__name__}"]
    twin.to(device)
    before = dict(torch.tpu.dispatch_stats()["fallbacks"])  # type: ignore[attr-defined]
    torch.manual_seed(1)
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
        found += compare_gradients(model, twin) + compare_step(model, twin)
    after = torch.tpu.dispatch_stats()["fallbacks"]  # type: ignore[attr-defined]
    found += [f"{op}{FELL_BACK}" for op, n in after.items() if n != before.get(op, 0)]
    return found


def verdict(tiny: Any, name: str, folder: Path, device: str) -> str:
    """In words, whether a model is the same on the device."""
    try:
        with DrawnOnCpu():
            found = compare_model(tiny, name, folder, device)
            if not found:
                return SAME
            if any(part.endswith(FELL_BACK) for part in found):
                return "; ".join(found)
            with EqualsInOrder():
                if not compare_model(tiny, name, folder, device):
                    return f"{SAME} but for the order of equal values in topk"
            try:
                if not compare_model(tiny, name, folder, device, double=True):
                    return f"{SAME} in float64, not in float32"
            except Exception as error:
                found.append(f"no float64: {type(error).__name__}")
        return "; ".join(found)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).replace("\n", " ")[:200]
        return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"


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
        done[name] = verdict(tiny, name, options.folder, options.device)
        with options.output.open("a") as file:
            file.write(f"{name}\t{done[name]}\t{time.perf_counter() - start:.1f} s\n")
    ran = {n: r for n, r in done.items() if not r.startswith("does not run on the CPU")}
    same = sum(result.startswith(SAME) for result in ran.values())
    at_once = sum(result == SAME for result in ran.values())
    print(
        f"{same} of {len(ran)} models the same as on the CPU, without falling back to it; "
        f"{same - at_once} of them only without equal values in topk or in float64"
    )
    return int(same != len(ran))


if __name__ == "__main__":
    sys.exit(main())
