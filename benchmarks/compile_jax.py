"""The work of `compile.py` in jax, each piece one jax.jit program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import compile_work as work
import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

Weights = dict[str, Any]


def _on_device(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def _norm(w: Weights, name: str, x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    scale = lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
    return centered * scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def _linear(w: Weights, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def gpt(w: Weights, tokens: Any, unseen: Any) -> Any:
    """Logits of the next tokens."""
    batch, length = tokens.shape

    def heads(part: Any) -> Any:
        return part.reshape(batch, length, work.HEADS, -1).transpose(0, 2, 1, 3)

    x = w["tokens.weight"][tokens] + w["positions.weight"]
    for i in range(work.LAYERS):
        b = f"blocks.{i}"
        inner = _linear(w, f"{b}.attention", _norm(w, f"{b}.before_attention", x))
        query, key, value = map(heads, jnp.split(inner, 3, 2))
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(work.WIDTH // work.HEADS)
        seen = jax.nn.softmax(jnp.where(unseen, -jnp.inf, scores), -1) @ value
        merged = seen.transpose(0, 2, 1, 3).reshape(batch, length, work.WIDTH)
        x = x + _linear(w, f"{b}.projection", merged)
        up = jax.nn.gelu(_linear(w, f"{b}.up", _norm(w, f"{b}.before_mlp", x)), approximate=True)
        x = x + _linear(w, f"{b}.down", up)
    return _norm(w, "norm", x) @ w["tokens.weight"].T


def _loss(w: Weights, tokens: Any, following: Any, unseen: Any) -> Any:
    scores = jax.nn.log_softmax(gpt(w, tokens, unseen), -1)
    return -jnp.take_along_axis(scores, following[..., None], -1).mean()


def train_step(state: Any, tokens: Any, following: Any, unseen: Any) -> Any:
    """AdamW on all weights."""
    w, first, second, step = state
    loss, grads = jax.value_and_grad(_loss)(w, tokens, following, unseen)
    step = step + 1
    a, b = work.BETAS
    first = jax.tree.map(lambda m, g: a * m + (1 - a) * g, first, grads)
    second = jax.tree.map(lambda v, g: b * v + (1 - b) * g * g, second, grads)

    def update(p: Any, m: Any, v: Any) -> Any:
        size = work.LEARNING_RATE / (1 - a**step)
        denominator = jnp.sqrt(v / (1 - b**step)) + work.EPSILON
        return p * (1 - work.LEARNING_RATE * work.WEIGHT_DECAY) - size * m / denominator

    return (jax.tree.map(update, w, first, second), first, second, step), loss


def _unseen() -> Any:
    return jnp.asarray(np.triu(np.ones((work.LENGTH, work.LENGTH), bool), 1))


def train() -> work.Step:
    w = _on_device(work.gpt_weights())
    zeros = jax.tree.map(jnp.zeros_like, w)
    data = [jnp.asarray(a) for a in work.gpt_data()]
    compiled = jax.jit(train_step, donate_argnums=0)
    state = [(w, zeros, jax.tree.map(jnp.zeros_like, w), jnp.float32(0))]
    unseen = _unseen()

    def once() -> None:
        state[0], loss = compiled(state[0], *data, unseen)
        jax.block_until_ready((state[0], loss))

    return once


def forward() -> work.Step:
    w, tokens, unseen = _on_device(work.gpt_weights()), work.gpt_data()[0], _unseen()
    compiled, on_device = jax.jit(gpt), jnp.asarray(tokens)

    def once() -> None:
        compiled(w, on_device, unseen).block_until_ready()

    return once


def _normalized(x: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def decoder(w: Weights, turns: Any, caches: Any, token: Any, place: Any) -> Any:
    """The next token, its place and the caches."""
    x = w["embedding"][token]
    cosine, sine = (lax.dynamic_slice_in_dim(t, place[0], 1) for t in turns)
    unseen = jnp.arange(work.CACHE) > place

    def rotated(x: Any) -> Any:
        half_a, half_b = jnp.split(x, 2, -1)
        return x * cosine + jnp.concatenate([-half_b, half_a], -1) * sine

    def heads(name: str, of: Any) -> Any:
        return (of @ w[name].T).reshape(1, work.HEADS, 1, -1)

    written = []
    for i in range(work.LAYERS):
        h = _normalized(x)
        query, key = (rotated(heads(f"{name}{i}", h)) for name in ("query", "key"))
        keys, values = (
            lax.dynamic_update_slice_in_dim(cache, new, place[0], 2)
            for cache, new in zip(caches[i], (key, heads(f"value{i}", h)), strict=True)
        )
        written.append((keys, values))
        scores = query @ keys.transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1])
        seen = jax.nn.softmax(jnp.where(unseen, -jnp.inf, scores), -1) @ values
        x = x + seen.reshape(1, -1) @ w[f"output{i}"].T
        h = _normalized(x)
        x = x + (jax.nn.silu(h @ w[f"gate{i}"].T) * (h @ w[f"up{i}"].T)) @ w[f"down{i}"].T
    logits = _normalized(x) @ w["head"].T
    return logits.argmax(-1).astype(jnp.int32), place + 1, written


def decode() -> work.Step:
    w, turns = _on_device(work.decoder_weights()), _on_device(work.rotations())
    compiled = jax.jit(decoder, donate_argnums=2)
    shape = (1, work.HEADS, work.CACHE, work.WIDTH // work.HEADS)

    def once() -> None:
        caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(work.LAYERS)]
        token, place = jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32)
        for _ in range(work.TOKENS):
            token, place, caches = compiled(w, turns, caches, token, place)
            np.asarray(token)

    return once


def call(tensors: int) -> Callable[[], work.Step]:
    """The call of a compiled function of so many arrays."""

    def make() -> work.Step:
        inputs = [jnp.zeros(1) for _ in range(tensors)]
        compiled = jax.jit(lambda values: [value + 1 for value in values])

        def once() -> None:
            compiled(inputs)

        return once

    return make


def steps(name: str) -> dict[str, Callable[[], work.Step]]:
    """Returns what makes each piece of work."""
    assert name == "jax"
    return {
        "train": train,
        "forward": forward,
        "decode": decode,
        **{f"call {n}": call(n) for n in (10, 100, 500)},
    }
