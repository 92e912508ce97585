"""The device's generators and their state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

tpu = torch.tpu  # type: ignore[attr-defined]

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(7, device="tpu"),
    "randn": lambda: torch.randn(3, 5, device="tpu"),
    "randint": lambda: torch.randint(0, 1000, (9,), device="tpu"),
    "randperm": lambda: torch.randperm(12, device="tpu"),
    "bernoulli": lambda: torch.full((64,), 0.5, device="tpu").bernoulli(),
    "normal": lambda: torch.normal(torch.zeros(4, device="tpu"), 2.0),
    "multinomial": lambda: torch.ones(10, device="tpu").multinomial(6),
    "dropout": lambda: nn.functional.dropout(torch.ones(64, device="tpu"), 0.5),
    "uniform_": lambda: torch.empty(5, device="tpu").uniform_(-1, 1),
    "exponential_": lambda: torch.empty(5, device="tpu").exponential_(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_the_same_seed_gives_the_same_numbers(draw: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(11)
    first, second = draw(), draw()
    torch.manual_seed(11)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)
    torch.manual_seed(12)
    assert not torch.equal(draw(), first)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_state_can_be_saved_and_restored(draw: Callable[[], torch.Tensor]) -> None:
    draw()
    state = tpu.get_rng_state()
    first = draw()
    tpu.set_rng_state(state)
    assert torch.equal(draw(), first)


def test_state_is_seed_and_offset() -> None:
    torch.manual_seed(5)
    state = tpu.get_rng_state("tpu:0")
    assert state.device.type == "cpu" and state.dtype == torch.uint8 and state.shape == (16,)
    assert state.view(torch.int64).tolist() == [5, 0]
    torch.rand(100, device="tpu")
    seed, offset = tpu.get_rng_state().view(torch.int64).tolist()
    assert seed == 5 and offset > 0
    assert [s.tolist() for s in tpu.get_rng_state_all()] == [tpu.get_rng_state().tolist()]
    tpu.set_rng_state_all([state])
    assert torch.equal(tpu.get_rng_state(torch.device("tpu")), state)
    with pytest.raises(RuntimeError, match="16 bytes"):
        tpu.set_rng_state(torch.zeros(5, dtype=torch.uint8))


def test_all_ways_to_seed() -> None:
    def numbers() -> list[float]:
        return torch.rand(3, device="tpu").tolist()

    torch.manual_seed(3)
    expected = numbers()
    for seed in (tpu.manual_seed, tpu.manual_seed_all, torch.random.manual_seed):
        tpu.manual_seed(9)
        seed(3)
        assert tpu.initial_seed() == 3
        assert numbers() == expected
    tpu.manual_seed(-1)
    assert tpu.initial_seed() == 2**64 - 1
    torch.manual_seed(-1)
    assert tpu.initial_seed() == 2**64 - 1
    value = tpu.seed()
    assert tpu.initial_seed() == value
    first = numbers()
    tpu.seed_all()
    assert numbers() != first
    tpu.manual_seed(value)
    assert numbers() == first


def test_generators() -> None:
    generator = torch.Generator(device="tpu")
    assert generator.device.type == "tpu"
    generator.manual_seed(7)
    first = torch.randn(4, device="tpu", generator=generator)
    copy = generator.clone_state()
    second = torch.randn(4, device="tpu", generator=generator)
    assert torch.equal(torch.randn(4, device="tpu", generator=copy), second)
    torch.manual_seed(7)
    assert torch.equal(torch.randn(4, device="tpu"), first)

    assert len(tpu.default_generators) == tpu.device_count()
    default = tpu.default_generators[0]
    assert default.initial_seed() == 7 and tpu.default_generators[:][0] is default
    default.manual_seed(7)
    assert torch.equal(torch.randn(4, device="tpu", generator=default), first)
    with pytest.raises(IndexError):
        tpu.default_generators[tpu.device_count()]


def test_a_generator_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator"):
        torch.randn(4, device="tpu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="tpu:0 and cpu"):
        torch.randn(4, generator=torch.Generator(device="tpu"))


def test_fork_rng() -> None:
    torch.manual_seed(1)
    states = tpu.get_rng_state(), torch.get_rng_state()
    for keywords in ({"device_type": "tpu"}, {}, {"devices": [0]}, {"devices": ["tpu:0"]}):
        with torch.random.fork_rng(**keywords):
            torch.manual_seed(2)
            torch.rand(3, device="tpu")
            torch.rand(3)
        assert torch.equal(tpu.get_rng_state(), states[0])
        assert torch.equal(torch.get_rng_state(), states[1])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_repeats_dropout(use_reentrant: bool) -> None:
    layer = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 8)).to("tpu")
    x = torch.randn(16, 32, device="tpu", requires_grad=True)

    def gradients(checkpointed: bool) -> list[torch.Tensor | None]:
        torch.manual_seed(4)
        y = checkpoint(layer, x, use_reentrant=use_reentrant) if checkpointed else layer(x)
        torch.rand(5, device="tpu")  # moves the generator on before the backward pass
        leaves = [x, *layer.parameters()]
        for leaf in leaves:
            leaf.grad = None
        y.square().sum().backward()
        return [y, *(leaf.grad for leaf in leaves)]

    for actual, expected in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(actual, expected)


def test_numbers_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            drawn.append(torch.randn(100_000, device="tpu"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*drawn)


def test_seeding_the_device_leaves_the_cpu_alone() -> None:
    torch.manual_seed(8)
    state = torch.get_rng_state()
    tpu.manual_seed(1)
    torch.rand(5, device="tpu")
    assert torch.equal(torch.get_rng_state(), state)
