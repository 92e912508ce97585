"""The work of `compile.py` in PyTorch: on the device, with inductor on the CPU, with torch_xla."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import compile_work as work
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A layer of the transformer, its attention written out."""

    def __init__(self) -> None:
        super().__init__()
        width = work.WIDTH
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, unseen: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward, each added to what came in."""
        batch, length, width = x.shape

        def heads(part: torch.Tensor) -> torch.Tensor:
            return part.view(batch, length, work.HEADS, -1).transpose(1, 2)

        query, key, value = map(heads, self.attention(self.before_attention(x)).split(width, 2))
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(width // work.HEADS)
        seen = functional.softmax(scores.masked_fill(unseen, -math.inf), -1) @ value
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The transformer; its last layer shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(work.VOCABULARY, work.WIDTH)
        self.positions = nn.Embedding(work.LENGTH, work.WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(work.LAYERS))
        self.norm = nn.LayerNorm(work.WIDTH)
        square = torch.ones(work.LENGTH, work.LENGTH, dtype=torch.bool)
        self.register_buffer("unseen", square.triu(1), persistent=False)
        self.register_buffer("places", torch.arange(work.LENGTH), persistent=False)
        weights = {name: torch.from_numpy(array) for name, array in work.gpt_weights().items()}
        self.load_state_dict(weights)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next tokens."""
        x = self.tokens(tokens) + self.positions(self.places)
        for block in self.blocks:
            x = block(x, self.unseen)
        return functional.linear(self.norm(x), self.tokens.weight)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Decoder(nn.Module):
    """One token in, the next one out; keys and values are written into caches in place."""

    def __init__(self) -> None:
        super().__init__()
        for name, array in work.decoder_weights().items():
            self.register_buffer(name, torch.from_numpy(array))
        cosines, sines = work.rotations()
        self.register_buffer("cosines", torch.from_numpy(cosines))
        self.register_buffer("sines", torch.from_numpy(sines))
        self.register_buffer("places", torch.arange(work.CACHE))
        size = work.WIDTH // work.HEADS
        for i in range(work.LAYERS):
            self.register_buffer(f"keys{i}", torch.zeros(1, work.HEADS, work.CACHE, size))
            self.register_buffer(f"values{i}", torch.zeros(1, work.HEADS, work.CACHE, size))

    def forward(
        self, token: torch.Tensor, place: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token and its place."""
        get = self.get_buffer
        x = functional.embedding(token, get("embedding"))
        turn = get("cosines").index_select(0, place), get("sines").index_select(0, place)
        unseen = get("places") > place

        def heads(layer: str, of: torch.Tensor) -> torch.Tensor:
            return functional.linear(of, get(layer)).view(1, work.HEADS, 1, -1)

        for i in range(work.LAYERS):
            h = normalized(x)
            query, key = (rotated(heads(f"{name}{i}", h), *turn) for name in ("query", "key"))
            keys, values = get(f"keys{i}"), get(f"values{i}")
            keys.index_copy_(2, place, key)
            values.index_copy_(2, place, heads(f"value{i}", h))
            scores = (query @ keys.transpose(-2, -1)) / math.sqrt(query.shape[-1])
            seen = functional.softmax(scores.masked_fill(unseen, -math.inf), -1) @ values
            x = x + functional.linear(seen.reshape(1, -1), get(f"output{i}"))
            h = normalized(x)
            gate = functional.silu(functional.linear(h, get(f"gate{i}")))
            up = functional.linear(h, get(f"up{i}"))
            x = x + functional.linear(gate * up, get(f"down{i}"))
        logits = functional.linear(normalized(x), get("head"))
        return logits.argmax(-1), place + 1


class Contender:
    """What differs between the ways to compile."""

    device: Any
    backend: str

    def compiled(self, function: Any) -> Any:
        """The function, compiled."""
        return torch.compile(function, backend=self.backend)

    def wait(self) -> None:
        """Until the device has done everything."""

    def train_step(self, step: Callable[..., Any], parts: dict[str, Any]) -> Callable[[], Any]:
        """A training step of compiled parts."""
        loss, update = self.compiled(parts["loss"]), self.compiled(parts["update"])
        return lambda: step(loss, update)


class Device(Contender):
    """torch.compile on the device, forward, backward and optimizer a program each."""

    device, backend = "tpu", "tpu"

    def __init__(self) -> None:
        self.tpu = importlib.import_module("torch_tpu.tpu")
        torch.set_float32_matmul_precision("highest")

    def wait(self) -> None:
        self.tpu.synchronize()


class DeviceStep(Device):
    """torch.tpu.compile_step: a training step in one program."""

    def train_step(self, step: Callable[..., Any], parts: dict[str, Any]) -> Callable[[], Any]:
        """The step as it is, in one program."""
        whole: Callable[[], Any] = self.tpu.compile_step(
            lambda: step(parts["loss"], parts["update"])
        )
        return whole


class Inductor(Contender):
    """torch.compile on the CPU."""

    device, backend = "cpu", "inductor"


class Xla(Contender):
    """torch_xla through Dynamo."""

    backend = "openxla"

    def __init__(self) -> None:
        self.package = importlib.import_module("torch_xla")
        self.device = self.package.device()

    def wait(self) -> None:
        self.package.sync(wait=True)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "tpu": Device,
    "tpu_step": DeviceStep,
    "inductor": Inductor,
    "torch_xla": Xla,
}


def train(contender: Contender) -> work.Step:
    model = Gpt().to(contender.device)
    tokens, following = (torch.from_numpy(a).to(contender.device) for a in work.gpt_data())
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=work.LEARNING_RATE,
        betas=work.BETAS,
        eps=work.EPSILON,
        weight_decay=work.WEIGHT_DECAY,
    )

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    def step(loss: Callable[[], torch.Tensor], update: Callable[[], Any]) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        update()
        return value.detach()

    run = contender.train_step(step, {"loss": loss, "update": optimizer.step})

    def once() -> None:
        run()
        contender.wait()

    return once


def forward(contender: Contender) -> work.Step:
    model = Gpt().to(contender.device).eval()
    tokens = torch.from_numpy(work.gpt_data()[0]).to(contender.device)
    compiled = contender.compiled(model)

    def once() -> None:
        with torch.no_grad():
            compiled(tokens)
        contender.wait()

    return once


def decode(contender: Contender) -> work.Step:
    compiled = contender.compiled(Decoder().to(contender.device).eval())

    def once() -> None:
        token = torch.ones(1, dtype=torch.long).to(contender.device)
        place = torch.zeros(1, dtype=torch.long).to(contender.device)
        with torch.no_grad():
            for _ in range(work.TOKENS):
                token, place = compiled(token, place)
                token.cpu()

    return once


def call(tensors: int) -> Callable[[Contender], work.Step]:
    """The call of a compiled function of so many tensors, which hardly does anything."""

    def make(contender: Contender) -> work.Step:
        inputs = [torch.zeros(1).to(contender.device) for _ in range(tensors)]
        compiled = contender.compiled(lambda values: [value + 1 for value in values])

        def once() -> None:
            with torch.no_grad():
                compiled(inputs)

        return once

    return make


def steps(name: str) -> dict[str, Callable[[], work.Step]]:
    """Returns what makes each piece of work, for a contender that is there."""
    contender = CONTENDERS[name]()
    makers: dict[str, Callable[[Contender], work.Step]] = {
        "train": train,
        "forward": forward,
        "decode": decode,
    }
    makers |= {f"call {n}": call(n) for n in (10, 100, 500)}
    if name == "tpu_step":
        makers = {"train": train}
    return {
        key: (lambda make=make: make(contender))  # type: ignore[misc]
        for key, make in makers.items()
    }
