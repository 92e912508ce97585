"""Transformers models, tiny and random, do on the device what they do on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from compare import assert_close_to_scale, assert_same, named_tensors

pytestmark = pytest.mark.usefixtures("no_fallback")

RTOL = 1e-4
VOCAB, WIDTH, HIDDEN, HEADS, LAYERS = 128, 64, 96, 4, 2
BATCH, LENGTH, NEW_TOKENS = 2, 12, 16
# Models of one shape share most of their compiled programs.
DECODER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def token_ids() -> torch.Tensor:
    """A batch of token ids, the same for every model."""
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(7))


def mask() -> torch.Tensor:
    """An attention mask whose second row starts with padding, as `generate` wants it."""
    values = torch.ones(BATCH, LENGTH, dtype=torch.long)
    values[1, :3] = 0
    return values


def text_inputs() -> dict[str, torch.Tensor]:
    """What a causal language model is trained on."""
    ids = token_ids()
    return {"input_ids": ids, "attention_mask": mask(), "labels": ids}


@dataclass(frozen=True)
class Model:
    """One architecture: its tiny configuration, its inputs and whether it generates."""

    cls: str
    config: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]] = text_inputs
    generates: bool = True


def qwen3() -> Any:
    return transformers.Qwen3Config(**DECODER)


def llama() -> Any:
    return transformers.LlamaConfig(**DECODER)


def qwen3_moe() -> Any:
    return transformers.Qwen3MoeConfig(
        **DECODER,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        output_router_logits=True,
    )


def gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=WIDTH,
        n_inner=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=64,
        initializer_range=0.2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )


def bert() -> Any:
    return transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=16,
        d_ff=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    # With one table at both ends the untrained model repeats its first token for ever.
    config.tie_word_embeddings = False
    return config


def vit() -> Any:
    return transformers.ViTConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        image_size=32,
        patch_size=8,
        num_labels=10,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def whisper() -> Any:
    return transformers.WhisperConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        num_mel_bins=16,
        max_source_positions=LENGTH,
        max_target_positions=64,
        init_std=0.2,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        decoder_start_token_id=1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


def image_inputs() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.tensor([3, 8])}


def speech_inputs() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(BATCH, 16, 2 * LENGTH), "labels": token_ids()}


MODELS = {
    "qwen3": Model("Qwen3ForCausalLM", qwen3),
    "llama": Model("LlamaForCausalLM", llama),
    "gpt2": Model("GPT2LMHeadModel", gpt2),
    "qwen3_moe": Model("Qwen3MoeForCausalLM", qwen3_moe),
    "bert": Model("BertForMaskedLM", bert, generates=False),
    "t5": Model("T5ForConditionalGeneration", t5),
    "vit": Model("ViTForImageClassification", vit, image_inputs, generates=False),
    "whisper": Model("WhisperForConditionalGeneration", whisper, speech_inputs),
}
GENERATING = [name for name, model in MODELS.items() if model.generates]


def build(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Makes the model with fixed random weights, and its inputs, both on the CPU."""
    torch.manual_seed(0)
    model = getattr(transformers, MODELS[name].cls)(MODELS[name].config())
    return model, MODELS[name].inputs()


def on(device: torch.device, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value.to(device) for key, value in inputs.items()}


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str, device: torch.device) -> None:
    model, inputs = build(name)
    model.train()
    pair = [(model, inputs), (copy.deepcopy(model).to(device), on(device, inputs))]
    outputs = []
    for each, batch in pair:
        # A gradient that is zero but for rounding must not become a step of full size: eps.
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-3, eps=1e-4)
        output = each(**batch)
        output.loss.backward()
        optimizer.step()
        outputs.append(dict(named_tensors(dict(output))))

    expected, actual = outputs
    assert expected.keys() == actual.keys()
    for key, value in expected.items():
        assert_close_to_scale(actual[key], value, RTOL, key)
    for (key, want), (_, have) in zip(
        pair[0][0].named_parameters(), pair[1][0].named_parameters(), strict=True
    ):
        assert (want.grad is None) == (have.grad is None), key
        if want.grad is not None:
            assert have.grad is not None
            assert_close_to_scale(have.grad, want.grad, RTOL, f"gradient of {key}")
        assert_close_to_scale(have, want, RTOL, f"{key} after the step", floor=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str, device: torch.device) -> None:
    model, inputs = build(name)
    model.eval()
    with torch.inference_mode():
        expected = dict(named_tensors(dict(model(**inputs))))
        actual = dict(named_tensors(dict(model.to(device)(**on(device, inputs)))))
    assert expected.keys() == actual.keys()
    for key, value in expected.items():
        assert_close_to_scale(actual[key], value, RTOL, key)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", GENERATING)
def test_greedy_generation(name: str, cache: str, device: torch.device) -> None:
    model, inputs = build(name)
    model.eval()
    inputs.pop("labels")
    # Every model writes all the tokens: none of them may stop early.
    model.generation_config.eos_token_id = None
    # The router's auxiliary loss is for training: it expects a mask as long as the input.
    model.config.output_router_logits = False
    # `generate` compiles a static cache's step by itself; this is about eager execution.
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    if cache == "static":
        options.update(cache_implementation="static", disable_compile=True)
    expected = model.generate(**inputs, **options)
    actual = model.to(device).generate(**on(device, inputs), **options)
    assert expected.shape[1] >= NEW_TOKENS
    assert len(expected.unique()) > 4, "the text is too uniform to tell anything"
    assert_same(actual, expected, what="generated tokens")
