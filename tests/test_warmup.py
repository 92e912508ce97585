"""torch.tpu.warmup: a call's programs are compiled before it runs, and nothing else happens."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers
from compare import assert_same, dispatch_stats

import torch_tpu._C as C
from torch_tpu import PerformanceWarning, tpu
from torch_tpu.tpu import WarmupReport, _warmup, warmup

DEVICE = torch.device("tpu")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Lets a test's signatures be new, and no warning pass unseen."""
    C.clear_programs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PerformanceWarning)  # said once a process
        yield


@dataclass
class Work:
    """A call and what it changes."""

    call: Callable[[], torch.Tensor]
    state: Callable[[], list[torch.Tensor]]


def of_training(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], torch.Tensor]
) -> Work:
    """A training step, whose state is the model's and the optimizer's."""

    def state() -> list[torch.Tensor]:
        tensors = list(model.state_dict().values())
        for values in optimizer.state.values():
            tensors += [v for v in values.values() if isinstance(v, torch.Tensor)]
        return tensors

    return Work(step, state)


def mlp_with_adamw() -> Work:
    """A step whose optimizer makes its state in the first one."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 3)).to(
        DEVICE
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(8, 6, device=DEVICE)
    y = torch.randint(0, 3, (8,), device=DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return of_training(model, optimizer, step)


def transformer() -> Work:
    """A step with dropout and gradient clipping."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    x = torch.randn(2, 5, 16, device=DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return loss

    return of_training(model, optimizer, step)


def convolution() -> Work:
    """A step that moves the running statistics of a BatchNorm."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(3, 2, 6, 6, device=DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("tpu", dtype=torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()
        optimizer.step()
        return loss

    return of_training(model, optimizer, step)


def inference() -> Work:
    """A forward pass on a batch from the host."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Softmax(-1)).to(DEVICE)
    batch = torch.randn(4, 5)

    @torch.inference_mode()
    def call() -> torch.Tensor:
        return model(batch.to(DEVICE))

    return Work(call, lambda: list(model.state_dict().values()))


WORKS = [mlp_with_adamw, transformer, convolution, inference]


def run(make: Callable[[], Work], warm: bool) -> list[torch.Tensor]:
    """The results of two calls and the state after them; `warm`: warmed up before."""
    torch.manual_seed(1)
    work = make()
    if warm:
        kept = [t.cpu() for t in work.state()]
        tpu.synchronize()
        executed = dispatch_stats()["programs"]
        report = warmup(work.call)
        assert dispatch_stats()["programs"] == executed
        assert report.programs == report.compiled + report.loaded + report.ready > 0
        assert all(torch.equal(a.cpu(), b) for a, b in zip(work.state(), kept, strict=True))
    before = dispatch_stats()
    results = [work.call()]
    after = dispatch_stats()
    if warm:
        assert after["compiles"] == before["compiles"]
        assert after["loads"] == before["loads"]
    results.append(work.call())
    return [t.detach().cpu() for t in results + work.state()]


@pytest.mark.parametrize("make", WORKS)
def test_first_call_compiles_nothing_and_gives_the_same(make: Callable[[], Work]) -> None:
    """After a warmup nothing is left to compile, and results are the ones without it."""
    warm = run(make, warm=True)
    cold = run(make, warm=False)
    assert len(warm) == len(cold)
    for a, b in zip(warm, cold, strict=True):
        assert torch.equal(a, b)


def test_generation_ends_and_is_complete() -> None:
    """Loops that ask the device whether they have ended do end, as late as the real ones."""
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        eos_token_id=None,
        bos_token_id=1,
    )
    model = transformers.LlamaForCausalLM(config).eval().to(DEVICE)
    prompt = torch.randint(2, 64, (1, 4), device=DEVICE)

    def generate() -> torch.Tensor:
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=6,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
            pad_token_id=0,
        )
        assert isinstance(out, torch.Tensor)
        lengths.append(out.shape[1])
        return out

    lengths: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        warmup(generate)
        before = dispatch_stats()["compiles"]
        tokens = generate()
        assert dispatch_stats()["compiles"] == before
    assert lengths[-1] == lengths[0] == 10
    assert int(tokens.min()) >= 0


def test_values_are_zeros_unless_they_are_known() -> None:
    """Floats read as zeros; small integers and booleans follow from what is known."""
    x = torch.full((3,), 2.0, device=DEVICE)
    lengths = torch.tensor([2, 3], device=DEVICE)
    seen: dict[str, object] = {}

    def call() -> None:
        seen["existing"] = x.tolist()
        seen["sum"] = x.sum().item()
        seen["bool"] = bool((x > 1).all())
        seen["lengths"] = (lengths.cumsum(0) + 1).tolist()
        seen["uploaded"] = torch.tensor([5, 6]).to(DEVICE)[1].item()
        seen["random"] = torch.randint(1, 9, (2,), device=DEVICE).tolist()
        seen["chosen"] = x[lengths.new_tensor([1, 0, 1]).bool()].shape
        seen["nonzero"] = (x * 2).nonzero().shape
        seen["selected"] = (x * 2).masked_select(x > 0).shape
        seen["unique"] = (x * 2).unique().shape
        seen["repeated"] = x.repeat_interleave(x.long(), output_size=6).shape
        seen["pinned"] = (x + 1).to("cpu", non_blocking=True).tolist()

    warmup(call)
    assert seen == {
        "existing": [2.0, 2.0, 2.0],
        "sum": 0.0,
        "bool": False,
        "lengths": [3, 6],
        "uploaded": 6,
        "random": [0, 0],
        "chosen": (2,),
        "nonzero": (0, 1),
        "selected": (0,),
        "unique": (1,),
        "repeated": (6,),
        "pinned": [0.0, 0.0, 0.0],
    }


def test_contents_come_back() -> None:
    """Whatever way tensors are written: in place, through views, as a whole in another layout."""
    a = torch.arange(6.0, device=DEVICE).reshape(2, 3)
    b = torch.zeros(2, 3, device=DEVICE).t()
    shared = a.clone()
    empty = torch.empty(4, device=DEVICE)
    gone = [torch.ones(5, device=DEVICE)]
    out = torch.ones(0, device=DEVICE)
    large = torch.ones(3, device=DEVICE)

    def call() -> None:
        a[0].add_(1)
        a.copy_(torch.ones(2, 3))
        b.copy_(a.t() + 1)
        shared.zero_()
        empty.fill_(3)
        gone[0].mul_(2)
        gone.clear()
        for _ in range(200):  # one of them takes the address
            gone.append(torch.ones(5, device=DEVICE))
        gone.clear()
        torch.add(a, 1, out=out)
        large.resize_(8)
        large.untyped_storage().resize_(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an out= that is resized
        warmup(call)
    expected = torch.arange(6.0).reshape(2, 3)
    assert_same(a, expected)
    assert_same(shared, expected)
    assert_same(b, torch.zeros(2, 3).t())
    assert not C.is_hollow(empty)
    assert out.shape == (2, 3)  # not contents
    assert out.cpu().shape == (2, 3)
    assert large[:3].tolist() == [1, 1, 1]


def test_gradients_come_back() -> None:
    """Those there were, and those there were not."""
    a = torch.ones(3, device=DEVICE, requires_grad=True)
    b = torch.ones(3, device=DEVICE, requires_grad=True)
    cleared = torch.ones(3, device=DEVICE, requires_grad=True)
    a.sum().backward()
    cleared.sum().backward()
    before = a.grad, cleared.grad

    def call() -> None:
        cleared.grad = None
        (a * b * 3).sum().backward()
        (a * 2).sum().backward(create_graph=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # create_graph makes cycles
        warmup(call)
    assert a.grad is before[0]
    assert a.grad is not None
    assert_same(a.grad, torch.ones(3))
    assert b.grad is None
    assert cleared.grad is before[1]


def test_random_state_comes_back() -> None:
    """Of the device, the CPU, Python and NumPy, seeding included."""

    def draws() -> list[float]:
        return [
            torch.rand((), device=DEVICE).item(),
            torch.rand(()).item(),
            random.random(),
            float(np.random.rand()),
        ]

    def call() -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        torch.nn.functional.dropout(torch.ones(4, device=DEVICE))
        draws()

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = draws()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    warmup(call)
    assert draws() == expected


def test_attributes_of_modules_and_schedulers_come_back() -> None:
    """A cache that a forward pass fills, a count, a learning rate."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.table: dict[int, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            n = x.shape[0]
            if n not in self.table:
                self.table[n] = torch.arange(n, device=x.device) * 2.0
                self.register_buffer("last", self.table[n])
            return x + self.table[n]

    model = Counting()
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0)

    def step() -> torch.Tensor:
        loss = model(weight).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        return loss

    warmup(step)
    assert model.count == 0
    assert not model.table
    assert "last" not in dict(model.named_buffers())
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert schedule.last_epoch == 0
    assert scaler.get_scale() == 8.0
    assert step().item() == 3 + 6
    assert_same(weight.detach(), torch.zeros(3))


def test_hollow_tensors_cannot_be_used_later() -> None:
    """What a call leaves behind is announced, and refused wherever it is used."""
    kept: list[torch.Tensor] = []
    x = torch.ones(2, 3, device=DEVICE)

    def call() -> None:
        kept.append(x + 1)
        kept.append(torch.tensor([1, 2]).to(DEVICE))

    with pytest.warns(UserWarning, match=r"2 tensors that the call made .* \(2,\), \(2, 3\)"):
        warmup(call)
    hollow = kept[0]
    uses: list[Callable[[], object]] = [
        lambda: hollow + 1,
        lambda: hollow.sum().item(),
        lambda: hollow.tolist(),
        lambda: hollow[0, 0].item(),
        lambda: hollow.t().cpu(),
        lambda: hollow.nonzero(),
        lambda: hollow.unique(),
        lambda: torch.linalg.eig(hollow[:, :2]),
        lambda: repr(hollow),
        lambda: x.copy_(hollow).sum().item(),
        lambda: torch.randn_like(hollow).mul_(hollow),
        lambda: kept[1].tolist(),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"made by torch\.tpu\.warmup and holds no data"):
            use()
    tpu.synchronize()
    hollow.copy_(torch.zeros(2, 3))
    assert hollow.sum().item() == 0


def test_takes_no_memory() -> None:
    """Results of a dry run are not allocated."""
    x = torch.ones(4, device=DEVICE)
    tpu.reset_peak_memory_stats()
    before = tpu.max_memory_allocated()

    def call() -> torch.Tensor:
        return torch.ones(1 << 20, device=DEVICE) * x.sum()

    warmup(call)
    assert tpu.max_memory_allocated() < before + (1 << 20)


def test_an_error_in_the_call_leaves_everything_as_it_was() -> None:
    """It comes out with a note."""
    x = torch.ones(3, device=DEVICE)
    state = tpu.get_rng_state()

    def call() -> None:
        x.add_(torch.rand(3, device=DEVICE))
        x @ torch.ones(4, device=DEVICE)

    with pytest.raises(RuntimeError) as caught:
        warmup(call)
    assert "torch.tpu.warmup" in caught.value.__notes__[0]
    assert not C.in_dry_run()
    assert_same(x, torch.ones(3))
    assert torch.equal(tpu.get_rng_state(), state)


def test_refuses_what_makes_no_sense() -> None:
    """Something that is no function, and a warmup inside another."""
    with pytest.raises(TypeError, match="expected a callable, got Tensor"):
        warmup(torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="got called inside one"):
        warmup(lambda: warmup(lambda: None))
    assert not C.in_dry_run()


def test_compile_errors_are_counted() -> None:
    """All programs are waited for; the first error is told."""

    class Failing:
        def __len__(self) -> int:
            return 3

        def wait(self, place: int) -> str | None:
            return f"error {place}" if place else None

    with pytest.raises(RuntimeError, match=r"2 of 3 programs .* The first: error 1"):
        _warmup._wait(Failing())  # type: ignore[arg-type]


def test_other_threads_go_on() -> None:
    """A dry run is its thread's: others compute meanwhile."""
    x = torch.ones(3, device=DEVICE)
    x.add_(0)
    total = [x]
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        inside.wait(60)
        for _ in range(20):
            total[0] = total[0] + 1
        done.set()

    def call() -> torch.Tensor:
        inside.set()
        assert done.wait(60)
        return x.exp()

    thread = threading.Thread(target=work)
    thread.start()
    warmup(call)
    thread.join()
    assert_same(total[0], torch.full((3,), 21.0))


def test_while_operators_are_fused() -> None:
    """What was recorded before a warmup is not part of it, and what comes after is right."""
    with tpu.set_eager_mode(tpu.EagerMode.DEFER_AND_FUSE):
        x = torch.ones(3, device=DEVICE)
        x += 1
        warmup(lambda: x.mul_(3).sum().item())
        x += 1
    assert_same(x, torch.full((3,), 3.0))


def test_views_that_begin_to_move() -> None:
    """Calls that share a program from the fifth on need that program in the first real run too."""
    x = torch.arange(30.0, device=DEVICE).reshape(5, 6)[:4]

    def call() -> list[torch.Tensor]:
        return [x[i] * 1.5 for i in range(4)]

    warmup(call)
    before = dispatch_stats()
    results = call()
    after = dispatch_stats()
    assert (after["compiles"], after["loads"]) == (before["compiles"], before["loads"])
    for i, result in enumerate(results):
        assert_same(result, torch.arange(30.0).reshape(5, 6)[i] * 1.5)


def test_report_reads_well() -> None:
    """Arguments are passed on; the report says what there was to do."""
    x = torch.ones(3, 2, device=DEVICE)
    first = warmup(torch.nn.functional.pad, x, (1, 2), value=7.25)
    second = warmup(torch.nn.functional.pad, x, (1, 2), value=7.25)
    assert first.programs == second.programs == second.ready == 1
    assert str(WarmupReport(3, 1, 1, 1, 0.25)) == (
        "3 programs in 0.2 s: 1 compiled, 1 loaded from the cache, 1 ready before"
    )
