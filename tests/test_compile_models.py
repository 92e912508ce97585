"""Transformers models, compiled as one graph on the device, do what they do eagerly on the CPU.

The families of test_models.py, and others whose graphs differ from theirs. Those whose graphs are
much like another's run with `TORCH_TPU_SLOW_TESTS=1` only.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any

import pytest
import test_models
import torch
import transformers
from compare import assert_close_to_scale, assert_same, named_tensors
from test_models import BATCH, DECODER, HEADS, HIDDEN, LAYERS, RTOL, VOCAB, WIDTH, Model

pytestmark = pytest.mark.usefixtures("no_fallback")

# An encoder in the words most configurations have for it.
ENCODER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}


def mistral() -> Any:
    return transformers.MistralConfig(**DECODER, sliding_window=8)


def gemma2() -> Any:
    return transformers.Gemma2Config(**DECODER, sliding_window=8, query_pre_attn_scalar=16)


def phi() -> Any:
    return transformers.PhiConfig(**DECODER, resid_pdrop=0.0, embd_pdrop=0.0)


def gpt_neox() -> Any:
    return transformers.GPTNeoXConfig(**{**ENCODER, "rotary_pct": 0.5})


def opt() -> Any:
    return transformers.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        init_std=0.2,
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=0,
    )


def bloom() -> Any:
    return transformers.BloomConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=0.2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=0,
    )


def mamba2() -> Any:
    return transformers.Mamba2Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        chunk_size=8,
        initializer_range=0.2,
        pad_token_id=0,
    )


def mamba() -> Any:
    return transformers.MambaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        state_size=8,
        initializer_range=0.2,
        pad_token_id=0,
    )


def roberta() -> Any:
    return transformers.RobertaConfig(**ENCODER)


def distilbert() -> Any:
    return transformers.DistilBertConfig(
        vocab_size=VOCAB,
        dim=WIDTH,
        hidden_dim=HIDDEN,
        n_layers=LAYERS,
        n_heads=HEADS,
        max_position_embeddings=64,
        initializer_range=0.2,
        dropout=0.0,
        attention_dropout=0.0,
    )


def albert() -> Any:
    return transformers.AlbertConfig(**ENCODER, embedding_size=32)


def deberta() -> Any:
    return transformers.DebertaV2Config(
        **ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
    )


def bart() -> Any:
    return transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        max_position_embeddings=64,
        init_std=0.2,
        dropout=0.0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        pad_token_id=0,
    )


def convnext() -> Any:
    return transformers.ConvNextConfig(
        hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, num_labels=10, initializer_range=0.2
    )


def resnet() -> Any:
    return transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=10,
    )


def swin() -> Any:
    return transformers.SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
        initializer_range=0.2,
        drop_path_rate=0.0,
    )


def clip() -> Any:
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    return transformers.CLIPConfig(
        text_config={
            **tower,
            "vocab_size": VOCAB,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )


def wav2vec2() -> Any:
    return transformers.Wav2Vec2Config(
        num_labels=10,
        classifier_proj_size=32,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        conv_dim=[32, 32],
        conv_stride=[5, 4],
        conv_kernel=[10, 4],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
        initializer_range=0.2,
    )


def clip_inputs() -> dict[str, Any]:
    text = test_models.text_inputs()
    text.pop("labels")
    return {**text, "pixel_values": torch.randn(BATCH, 3, 32, 32), "return_loss": True}


def wave_inputs() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(BATCH, 800), "labels": torch.tensor([3, 8])}


OTHERS = {
    "mistral": Model("MistralForCausalLM", mistral),
    "gemma2": Model("Gemma2ForCausalLM", gemma2),
    "phi": Model("PhiForCausalLM", phi),
    "gpt_neox": Model("GPTNeoXForCausalLM", gpt_neox),
    "opt": Model("OPTForCausalLM", opt),
    "bloom": Model("BloomForCausalLM", bloom),
    "mamba": Model("MambaForCausalLM", mamba),
    "mamba2": Model("Mamba2ForCausalLM", mamba2),
    "roberta": Model("RobertaForMaskedLM", roberta),
    "distilbert": Model("DistilBertForMaskedLM", distilbert),
    "albert": Model("AlbertForMaskedLM", albert),
    "deberta": Model("DebertaV2ForMaskedLM", deberta),
    "bart": Model("BartForConditionalGeneration", bart),
    "convnext": Model("ConvNextForImageClassification", convnext, test_models.image_inputs),
    "resnet": Model("ResNetForImageClassification", resnet, test_models.image_inputs),
    "swin": Model("SwinForImageClassification", swin, test_models.image_inputs),
    "clip": Model("CLIPModel", clip, clip_inputs),
    "wav2vec2": Model("Wav2Vec2ForSequenceClassification", wav2vec2, wave_inputs),
}
MODELS = {**test_models.MODELS, **OTHERS}
LIKE_OTHERS = {
    "mistral": "gemma2",
    "phi": "gpt2",
    "gpt_neox": "llama",
    "mamba": "mamba2",
    "roberta": "bert",
    "distilbert": "bert",
    "albert": "bert",
    "bart": "t5",
}


def named(names: Iterable[str]) -> list[Any]:
    """Parameters of the tests, of which some are left out."""
    everything = os.environ.get("TORCH_TPU_SLOW_TESTS") == "1"
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name in LIKE_OTHERS and not everything,
                reason=f"much like {LIKE_OTHERS.get(name)}; runs with TORCH_TPU_SLOW_TESTS=1",
            ),
        )
        for name in names
    ]


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """Makes the model with fixed random weights, and its inputs, both on the CPU."""
    torch.manual_seed(0)
    model = getattr(transformers, MODELS[name].cls)(MODELS[name].config())
    if getattr(model, "loss_type", "") is None:
        # GPT-2 would log that it takes this one, and Dynamo traces no logging.
        model.loss_type = "ForCausalLM"
    if name == "wav2vec2":
        # Otherwise it makes a tensor in the middle of its graph require a gradient, which Dynamo
        # does not trace.
        model.freeze_feature_encoder()
    inputs = MODELS[name].inputs()
    # In its first call it adds hooks under a lock, which Dynamo does not trace.
    with torch.no_grad():
        model.eval()(**inputs)
    return model, inputs


def on(device: torch.device, inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}


def assert_outputs(actual: Any, expected: Any) -> None:
    """Compares the tensors of two outputs."""
    wanted, given = (dict(named_tensors(dict(output))) for output in (expected, actual))
    assert wanted.keys() == given.keys()
    for key, value in wanted.items():
        assert_close_to_scale(given[key], value, RTOL, key)


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    """Graphs of the test before do not count towards how often a function is compiled."""
    torch.compiler.reset()


@pytest.mark.parametrize("name", named(MODELS))
def test_training(name: str, device: torch.device) -> None:
    model, inputs = build(name)
    model.train()
    twin = copy.deepcopy(model).to(device)
    compiled = torch.compile(twin, fullgraph=True)
    expected = model(**inputs)
    expected.loss.backward()
    actual = compiled(**on(device, inputs))
    actual.loss.backward()
    assert_outputs(actual, expected)
    for (key, want), (_, have) in zip(
        model.named_parameters(), twin.named_parameters(), strict=True
    ):
        assert (want.grad is None) == (have.grad is None), key
        if want.grad is not None:
            assert have.grad is not None
            assert_close_to_scale(have.grad, want.grad, RTOL, f"gradient of {key}")
    for (key, want), (_, have) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        assert_close_to_scale(have, want, RTOL, key)


@pytest.mark.parametrize("name", named(MODELS))
def test_inference(name: str, device: torch.device) -> None:
    model, inputs = build(name)
    model.eval()
    with torch.no_grad():
        expected = model(**inputs)
        actual = torch.compile(model.to(device), fullgraph=True)(**on(device, inputs))
    assert_outputs(actual, expected)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_generation(name: str, device: torch.device) -> None:
    """The decoding step over a static cache is one compiled graph, called for every token."""
    model, inputs = build(name)
    inputs.pop("labels")
    model.generation_config.eos_token_id = None
    options = {"max_new_tokens": 16, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(**inputs, **options, disable_compile=True)
    assert len(expected.unique()) > 4, "the text is too uniform to tell anything"
    model.to(device)
    config = model._default_compile_config()
    assert config.backend == "tpu"
    config.fullgraph = True
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    actual = model.generate(**on(device, inputs), **options, compile_config=config)
    assert_same(actual, expected, what="generated tokens")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs == 1
