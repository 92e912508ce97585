"""The work that `compile.py` gives to every contender: sizes, weights, data; no framework."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# The transformer that is trained, and run forward.
LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 1024
BATCH, LENGTH = 4, 128
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
# The decoder of one sequence: gated feed-forward layers, rotated positions, a cache of fixed size.
FEED_FORWARD, CACHE = 704, 256
# Tokens of one turn of decoding.
TOKENS = 40

# Does the work once and waits for it.
Step = Callable[[], None]


def gpt_weights() -> dict[str, Array]:
    """Returns the weights of the transformer; a linear layer's are [out, in]."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return (0.02 * draw.standard_normal(shape)).astype(np.float32)

    def linear(name: str, inputs: int, outputs: int) -> dict[str, Array]:
        return {
            f"{name}.weight": normal(outputs, inputs),
            f"{name}.bias": np.zeros(outputs, np.float32),
        }

    def norm(name: str) -> dict[str, Array]:
        return {
            f"{name}.weight": np.ones(WIDTH, np.float32),
            f"{name}.bias": np.zeros(WIDTH, np.float32),
        }

    weights = {
        "tokens.weight": normal(VOCABULARY, WIDTH),
        "positions.weight": normal(LENGTH, WIDTH),
        **norm("norm"),
    }
    for i in range(LAYERS):
        block = f"blocks.{i}"
        weights |= norm(f"{block}.before_attention") | norm(f"{block}.before_mlp")
        weights |= linear(f"{block}.attention", WIDTH, 3 * WIDTH)
        weights |= linear(f"{block}.projection", WIDTH, WIDTH)
        weights |= linear(f"{block}.up", WIDTH, 4 * WIDTH)
        weights |= linear(f"{block}.down", 4 * WIDTH, WIDTH)
    return weights


def gpt_data() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns tokens and the tokens that follow them."""
    text = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1))
    return text[:, :-1].copy(), text[:, 1:].copy()


def decoder_weights() -> dict[str, Array]:
    """Returns the weights of the decoder."""
    draw = np.random.default_rng(2)
    shapes = {
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "output": (WIDTH, WIDTH),
        "gate": (FEED_FORWARD, WIDTH),
        "up": (FEED_FORWARD, WIDTH),
        "down": (WIDTH, FEED_FORWARD),
    }

    def normal(*shape: int) -> Array:
        return (0.06 * draw.standard_normal(shape)).astype(np.float32)

    weights = {"embedding": normal(VOCABULARY, WIDTH), "head": normal(VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        weights |= {f"{name}{i}": normal(*shape) for name, shape in shapes.items()}
    return weights


def rotations() -> tuple[Array, Array]:
    """Returns cosines and sines, [CACHE, head size]."""
    size = WIDTH // HEADS
    angles = np.outer(np.arange(CACHE), 10000.0 ** (-np.arange(0, size, 2) / size))
    angles = np.concatenate([angles, angles], 1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
