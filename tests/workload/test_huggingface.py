"""Hugging Face configurations as shapes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.workload.zoo import load_workload, model_config


def _write(folder: Path, **fields: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return f"hf:{path}"


def test_gpt2_configuration(tmp_path: Path) -> None:
    """GPT-2 XL's published configuration is the named model."""
    model = _write(tmp_path, model_type="gpt2", n_layer=48, n_embd=1600, n_head=25)
    assert model_config(model) == model_config("gpt2-xl")
    assert load_workload(model).parameters == 1_557_611_200
    assert model_config(f"hf:{tmp_path}") == model_config(model)


def test_llama_configuration(tmp_path: Path) -> None:
    """Llama 3 8B's published configuration is the named model."""
    model = _write(
        tmp_path,
        model_type="llama",
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_hidden_layers=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        vocab_size=128256,
        rope_theta=500000.0,
    )
    assert model_config(model) == model_config("llama3-8b")


def test_bert_configuration(tmp_path: Path) -> None:
    """BERT-large's published configuration is the named model; the rest are class defaults."""
    model = _write(
        tmp_path,
        model_type="bert",
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=16,
        num_hidden_layers=24,
    )
    config = model_config(model)
    assert config.inner == model_config("bert-large").inner
    assert load_workload(model).parameters == 335_174_458


def test_defaults_are_those_of_the_classes(tmp_path: Path) -> None:
    """A configuration that says nothing is the base model: GPT-2 124 M, BERT 109.5 M, Llama 7 B."""
    sizes = {"gpt2": 124_439_808, "bert": 109_514_298, "llama": 6_738_415_616}
    for model_type, parameters in sizes.items():
        assert load_workload(_write(tmp_path, model_type=model_type)).parameters == parameters


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mamba"}, "Unknown model_type 'mamba'"),
        ({"model_type": ["gpt2"]}, "Unknown model_type"),
        ({}, "has no model_type"),
        ({"model_type": "gpt2", "n_layer": "12"}, "not valid"),
        ({"model_type": "gpt2", "n_layer": None}, "not valid"),
    ],
)
def test_broken_configurations_are_refused(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    """A configuration of no known type, or with a value of the wrong type, is one sentence."""
    with pytest.raises(InputError) as caught:
        model_config(_write(tmp_path, **fields))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),  # products with a distance table
        ("bert", "position_embedding_type", "relative_key_query"),
        ("bert", "add_cross_attention", True),  # a second attention in every block
        ("bert", "is_encoder_decoder", True),
        ("bert", "pruned_heads", {"0": [1]}),  # blocks of different widths
        ("bert", "hidden_act", "silu"),
        ("bert", "architectures", ["BertForSequenceClassification"]),  # another head
        ("gpt2", "activation_function", "swish"),
        ("gpt2", "activation_function", ["gelu"]),
        ("gpt2", "add_cross_attention", True),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "reorder_and_upcast_attn", True),  # scores in fp32
        ("gpt2", "embd_pdrop", 0.0),  # no mask after the embedding only
        ("gpt2", "architectures", ["GPT2DoubleHeadsModel"]),
        ("llama", "hidden_act", "gelu"),
        ("llama", "attention_bias", True),
        ("llama", "mlp_bias", True),
        ("llama", "head_dim", 256),  # heads wider than their share of the hidden size
        ("llama", "sliding_window", 4096),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "architectures", ["LlamaForSequenceClassification"]),
    ],
)
def test_other_mathematics_are_refused(
    tmp_path: Path, model_type: str, key: str, value: object
) -> None:
    """A key that changes operators or shapes is refused by name and value, with the way out."""
    with pytest.raises(InputError) as caught:
        model_config(_write(tmp_path, model_type=model_type, **{key: value}))
    sentence = str(caught.value)
    assert sentence.startswith(f"{key} is {msgspec.json.encode(value).decode()}")
    assert "phaze-opt workload capture" in sentence


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("bert", {"position_embedding_type": "absolute", "pruned_heads": {}, "use_cache": True}),
        ("bert", {"architectures": ["BertForMaskedLM"], "add_cross_attention": False}),
        ("gpt2", {"n_inner": None, "reorder_and_upcast_attn": False, "n_ctx": 1024}),
        ("gpt2", {"architectures": ["GPT2LMHeadModel"], "scale_attn_weights": True}),
        ("llama", {"head_dim": 128, "sliding_window": None, "num_key_value_heads": None}),
        ("llama", {"rope_scaling": {"factor": 8.0}, "attention_bias": False, "mlp_bias": None}),
        ("llama", {"architectures": ["LLaMAForCausalLM"], "pretraining_tp": 1}),
    ],
)
def test_plain_values_change_nothing(
    tmp_path: Path, model_type: str, fields: dict[str, Any]
) -> None:
    """A key with its plain value, or one that changes no operator, reads as if it were absent."""
    model = model_config(_write(tmp_path, model_type=model_type, **fields))
    assert model == model_config(_write(tmp_path, model_type=model_type))


@pytest.mark.parametrize(
    ("model_type", "key", "value", "field"),
    [
        ("bert", "is_decoder", True, "causal"),
        ("bert", "tie_word_embeddings", False, "tied"),
        ("bert", "type_vocab_size", 3, "token_types"),
        ("gpt2", "n_inner", 1000, "feed_forward"),
        ("gpt2", "tie_word_embeddings", False, "tied"),
        ("gpt2", "num_hidden_layers", 3, "layers"),  # the class accepts either name
        ("gpt2", "hidden_size", 96, "hidden"),
        ("llama", "tie_word_embeddings", True, "tied"),
        ("llama", "num_key_value_heads", 8, "kv_heads"),
    ],
)
def test_keys_are_honoured(
    tmp_path: Path, model_type: str, key: str, value: object, field: str
) -> None:
    """A key that `TransformerConfig` can express is read."""
    config = model_config(_write(tmp_path, model_type=model_type, **{key: value}))
    assert getattr(config, field) == value


def test_configuration_must_exist_and_be_json(tmp_path: Path) -> None:
    """A missing file and a broken one are told apart."""
    with pytest.raises(NotFoundError):
        model_config(f"hf:{tmp_path / 'config.json'}")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        model_config(f"hf:{tmp_path}")


def test_attention_dropout_may_differ(tmp_path: Path) -> None:
    """Dropout of the probabilities is read apart from the others."""
    config = model_config(_write(tmp_path, model_type="gpt2", attn_pdrop=0.0))
    assert (config.dropout, config.attention_dropout) == (0.1, 0.0)
