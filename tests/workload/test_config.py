"""Model strings as shapes."""

import pytest

from phaze_opt.errors import InputError
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.model_string import parse_model_string
from phaze_opt.workload.zoo import model_config

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


def test_llama_without_its_defaults() -> None:
    """What makes a Llama is kept apart from its sizes."""
    assert set(LLAMA) <= set(TransformerConfig.__dataclass_fields__)
