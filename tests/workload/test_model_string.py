"""Model strings and Hugging Face configurations as shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.model_string import LLAMA, parse_model_string
from phaze_opt.workload.zoo import load_workload, model_config

GPT_SIZES = "layers=2,hidden=64,heads=4,sequence=32,vocab=100"
LLAMA_SIZES = "layers=2,hidden=64,heads=4,ffn=96,sequence=32,vocab=100"


def test_gpt_defaults() -> None:
    """A GPT has eager attention and dropout 0.1 unless it says otherwise."""
    config = parse_model_string(f"gpt:{GPT_SIZES}")
    assert config == TransformerConfig(2, 64, 4, 32, 100)
    assert (config.attention, config.dropout, config.attention_dropout) == ("eager", 0.1, 0.1)
    other = parse_model_string(f"gpt:{GPT_SIZES},attention=flash,dropout=0")
    assert (other.attention, other.dropout, other.attention_dropout) == ("flash", 0.0, 0.0)


def test_llama_defaults() -> None:
    """A Llama has flash attention, no dropout, and as many key heads as heads."""
    config = parse_model_string(f"llama:{LLAMA_SIZES},kv_heads=2")
    assert (config.attention, config.dropout, config.key_value_heads) == ("flash", 0.0, 2)
    assert (config.norm, config.positions, config.activation) == ("rms_norm", "rotary", "swiglu")
    assert parse_model_string(f"llama:{LLAMA_SIZES}").key_value_heads == 4


def test_named_models_are_strings_too() -> None:
    """Llama 2 written as a string is the named model."""
    string = "llama:layers=32,hidden=4096,heads=32,ffn=11008,sequence=4096,vocab=32000"
    assert model_config(string) == model_config("llama2-7b")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt:", "Unknown key"),  # nothing given
        ("gpt:layers=2", "lacks hidden, heads, sequence, vocab"),
        (f"gpt:{GPT_SIZES},hiden=3", "Did you mean 'hidden'"),  # a typo
        (f"gpt:{GPT_SIZES},kv_heads=2", "Unknown key"),  # Llama's
        (f"gpt:{GPT_SIZES},layers=3", "once"),  # twice
        (f"gpt:{GPT_SIZES},ffn", "needs ffn=VALUE"),  # no value
        (f"gpt:{GPT_SIZES},dropout=1.5", "below 1"),
        (f"gpt:{GPT_SIZES},dropout=nan", "below 1"),
        (f"gpt:{GPT_SIZES},attention=slow", "eager or flash"),
        ("gpt:layers=2,hidden=64,heads=5,sequence=32,vocab=100", "multiple of the 5 heads"),
        ("gpt:layers=0,hidden=64,heads=4,sequence=32,vocab=100", "layers is 0"),
        ("gpt:layers=2,hidden=64.5,heads=4,sequence=32,vocab=100", "whole number"),
        ("gpt:layers=99999999,hidden=64,heads=4,sequence=32,vocab=100", "between 1 and 10000"),
        (f"llama:{LLAMA_SIZES},kv_heads=3", "divide the 4 heads"),
        ("llama:layers=2,hidden=12,heads=4,ffn=96,sequence=32,vocab=100", "even number"),
    ],
)
def test_bad_strings_are_refused(model: str, words: str) -> None:
    """A shape that is misspelt or impossible is refused with what is allowed."""
    with pytest.raises(InputError) as caught:
        model_config(model)
    assert words in str(caught.value)


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
        ({}, "has no model_type"),
        ({"model_type": "gpt2", "n_layer": "12"}, "not valid"),
        ({"model_type": "gpt2", "activation_function": "swish"}, "Unknown activation 'swish'"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "must have 'silu'"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias is true"),
        ({"model_type": "llama", "head_dim": 256}, "head_dim is 256"),
    ],
)
def test_other_configurations_are_refused(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    """What the family does not cover is refused by name."""
    with pytest.raises(InputError) as caught:
        model_config(_write(tmp_path, **fields))
    assert words in str(caught.value)


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


def test_llama_without_its_defaults() -> None:
    """What makes a Llama is kept apart from its sizes."""
    assert set(LLAMA) <= set(TransformerConfig.__dataclass_fields__)
