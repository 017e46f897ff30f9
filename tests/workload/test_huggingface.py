"""Hugging Face configurations as shapes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.workload_file import write_workload
from phaze_opt.workload.zoo import load_workload, model_config, tensor_degrees

CONFIGS: dict[str, Any] = {
    name: row
    for file in ("huggingface_configs.json", "huggingface_later_configs.json")
    for name, row in json.loads(
        (Path(__file__).parent.parent / "data" / file).read_text("utf-8")
    ).items()
}
"""Published configurations by name, each with the number of parameters of the release."""


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
        ({"model_type": "mamba"}, "capture it: `phaze-opt workload capture"),
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


@pytest.mark.parametrize("value", ["x", [[1]], True, -1])
@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("deepseek_v4", "compress_rates"),
        ("deepseek_v4", "compress_rates.compressed_sparse_attention"),
        ("deepseek_v4", "compress_ratios"),
        ("whisper", "activation_dropout"),
        ("gemma3", "vision_config"),
        ("qwen3_vl", "vision_config.deepstack_visual_indexes"),
        ("qwen2_5_vl", "vision_config.fullatt_block_indexes"),
        ("qwen2_5_vl", "vision_config.patch_size"),
        ("qwen2_vl", "vision_config.mlp_ratio"),
        ("llama4", "vision_config.pixel_shuffle_ratio"),
    ],
)
def test_values_of_a_wrong_kind_are_refused(
    tmp_path: Path, model: str, key: str, value: object
) -> None:
    """Wherever other fields are computed of them; null and nothing stand for the default."""
    inner, _, name = key.rpartition(".")
    added = "" if model in ("deepseek_v4", "whisper") else "+images1"

    def path(stated: object) -> str:
        fields = {inner: {name: stated}} if inner else {name: stated}
        return _write(tmp_path, model_type=model, **fields) + added

    with pytest.raises(InputError):
        model_config(path(value), 2048)
    by_default = model_config(path(None), 2048)
    assert by_default == model_config(_write(tmp_path, model_type=model) + added, 2048)


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
        ("gpt2", "resid_pdrop", 0.0),  # a mask after the embedding only
        ("gpt2", "architectures", ["GPT2DoubleHeadsModel"]),
        ("llama", "hidden_act", "relu"),  # gated by it
        ("llama", "attention_bias", "yes"),
        ("llama", "sliding_window", 4096),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "architectures", ["LlamaForSequenceClassification"]),
        ("mistral", "sliding_window", -1),
        ("mistral", "layer_types", ["full_attention"]),
        ("qwen2", "layer_types", ["full_attention"]),  # for one layer of 32
        ("gemma2", "layer_types", ["chunked_attention"] * 26),
        ("gemma", "use_bidirectional_attention", True),
        ("phi3", "embd_pdrop", 0.1),  # and not in the blocks
        ("phi3", "partial_rotary_factor", 2),
        ("opt", "layerdrop", 0.1),  # blocks left out at random
        ("opt", "layer_norm_elementwise_affine", False),
        ("falcon", "alibi", True),  # a bias of the scores
        ("falcon", "hidden_dropout", 0.1),
        ("roberta", "position_embedding_type", "relative_key"),
        ("vit", "architectures", ["ViTForMaskedImageModeling"]),
        ("vit", "patch_size", 0),
        ("vit", "image_size", [224, 224]),
        ("t5", "feed_forward_proj", "gated-tanh"),
        ("t5", "architectures", ["T5EncoderModel"]),
        ("gemma3", "text_config", "gemma"),
        ("olmo", "clip_qkv", 8.0),  # queries, keys and values are bounded
        ("cohere", "use_qk_norm", True),  # with weights of every head
        ("nemotron", "hidden_act", "silu"),
        ("phi", "qk_layernorm", True),
        ("smollm3", "no_rope_layers", [1, 2]),
        ("exaone4", "sliding_window_pattern", "GLL"),
        ("starcoder2", "embedding_dropout", 0.1),  # and not in the blocks
        ("hunyuan_v1_moe", "moe_topk", [1, 2]),  # another one in some layers
        ("hunyuan_v1_moe", "use_cla", True),  # keys of the layer before
        ("dbrx", "tie_word_embeddings", True),
    ],
)
def test_other_mathematics_are_refused(
    tmp_path: Path, model_type: str, key: str, value: object
) -> None:
    """A key that changes operators or shapes is refused by name and value, with the way out."""
    with pytest.raises(InputError) as caught:
        model_config(_write(tmp_path, model_type=model_type, **{key: value}))
    sentence = str(caught.value)
    named = "embd_pdrop is 0.1" if key == "resid_pdrop" else None
    assert sentence.startswith(named or f"{key} is {msgspec.json.encode(value).decode()}")
    assert "capture it: `phaze-opt workload capture" in sentence


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
        ("llama", "head_dim", 256, "head_elements"),
        ("llama", "attention_bias", True, "projection_bias"),
        ("llama", "mlp_bias", True, "bias"),
        ("gpt2", "embd_pdrop", 0.0, "embedding_dropout"),
        ("mistral", "num_key_value_heads", 4, "kv_heads"),
        ("qwen3", "attention_bias", True, "query_key_value_bias"),
        ("gemma2", "final_logit_softcapping", 20.0, "logit_softcap"),
        ("gemma2", "attn_logit_softcapping", 40.0, "attention_softcap"),
        ("opt", "activation_dropout", 0.2, "inner_dropout"),
        ("opt", "word_embed_proj_dim", 512, "embedding_size"),
        ("gpt_neox", "attention_bias", False, "projection_bias"),
        ("falcon", "n_layer", 3, "layers"),
        ("vit", "num_labels", 1000, "vocabulary"),
        ("vit", "qkv_bias", False, "query_key_value_bias"),
        ("t5", "num_decoder_layers", 4, "layers"),
        ("t5", "tie_word_embeddings", False, "tied"),
    ],
)
def test_keys_are_honoured(
    tmp_path: Path, model_type: str, key: str, value: object, field: str
) -> None:
    """A key that `TransformerConfig` can express is read."""
    config = model_config(_write(tmp_path, model_type=model_type, **{key: value}))
    assert getattr(config, field) == value


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        # Two keys together, or one that stands for several fields.
        ({"model_type": "llama", "hidden_act": "gelu"}, "activation", "geglu"),
        ({"model_type": "mistral", "num_hidden_layers": 2}, "windows", (4096, 4096)),
        ({"model_type": "mistral", "sliding_window": None}, "windows", ()),
        ({"model_type": "mistral", "num_key_value_heads": None}, "kv_heads", 0),
        ({"model_type": "qwen2", "sliding_window": 64}, "windows", ()),  # not used
        (
            {
                "model_type": "qwen2",
                "num_hidden_layers": 3,
                "max_window_layers": 2,
                "sliding_window": 64,
                "use_sliding_window": True,
            },
            "windows",
            (0, 0, 64),
        ),
        ({"model_type": "gemma2", "num_hidden_layers": 3}, "windows", (4096, 0, 4096)),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, "logit_softcap", 0),
        (
            {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 512},
            "windows",
            (512, 512, 512, 512, 512, 0, 512),
        ),
        (
            {
                "model_type": "gemma3_text",
                "num_hidden_layers": 2,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "windows",
            (0, 4096),
        ),
        ({"model_type": "gemma3", "text_config": {"head_dim": 128}}, "head_elements", 128),
        ({"model_type": "olmo3", "num_hidden_layers": 5}, "windows", (4096, 4096, 4096, 0, 4096)),
        ({"model_type": "smollm3", "num_hidden_layers": 5}, "unrotated_layers", (3,)),
        ({"model_type": "smollm3", "no_rope_layers": [1] * 36}, "unrotated_layers", UNSET),
        ({"model_type": "cohere2", "num_hidden_layers": 5}, "unrotated_layers", (3,)),
        ({"model_type": "exaone4", "sliding_window": None}, "unrotated_layers", UNSET),
        (
            {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window_pattern": "LLG"},
            "unrotated_layers",
            (2,),
        ),
        ({"model_type": "llama4_text", "num_hidden_layers": 5}, "unrotated_layers", (3,)),
        ({"model_type": "glm4"}, "rotary_elements", 64),
        ({"model_type": "nemotron", "head_dim": 64}, "rotary_elements", 32),
        ({"model_type": "gpt_bigcode"}, "kv_heads", 1),
        ({"model_type": "seed_oss"}, "query_key_value_bias", True),
        ({"model_type": "phi3", "partial_rotary_factor": 0.75}, "rotary_elements", 72),
        ({"model_type": "gpt_neox"}, "rotary_elements", 24),
        (
            {"model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 0.5}},
            "rotary_elements",
            48,
        ),
        ({"model_type": "gpt_neox", "use_parallel_residual": False}, "residual", "sequential"),
        ({"model_type": "falcon", "parallel_attn": False}, "residual", "sequential"),
        ({"model_type": "falcon"}, "kv_heads", 1),
        ({"model_type": "falcon", "multi_query": False}, "kv_heads", 0),
        ({"model_type": "opt", "do_layer_norm_before": False}, "norm_position", "post"),
        ({"model_type": "roberta", "max_position_embeddings": 514}, "sequence", 512),
        ({"model_type": "vit", "image_size": 384}, "sequence", 577),
        ({"model_type": "vit", "id2label": {"0": "a", "1": "b", "2": "c"}}, "vocabulary", 3),
        ({"model_type": "t5", "feed_forward_proj": "gated-gelu"}, "activation", "geglu"),
    ],
)
def test_several_keys_make_a_field(
    tmp_path: Path, fields: dict[str, Any], field: str, value: object
) -> None:
    """Fields that no single key states are what the configuration class makes of its keys."""
    assert getattr(model_config(_write(tmp_path, **fields)), field) == value


def test_only_the_language_model_is_read_of_images_and_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says what is left out."""
    config = model_config(_write(tmp_path, model_type="gemma3", text_config={}))
    assert config == model_config(_write(tmp_path, model_type="gemma3_text"))
    assert "only its language model is read" in caplog.text
    assert "Left out are the vision tower and the projector" in caplog.text


@pytest.mark.parametrize(
    ("fields", "family"),
    [
        ({"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text"}}, "qwen2"),
        ({"model_type": "qwen2_vl", "num_hidden_layers": 3, "vision_config": {}}, "qwen2"),
        ({"model_type": "mistral3", "text_config": {}}, "mistral"),
        ({"model_type": "llava", "text_config": {"model_type": "mistral"}}, "mistral"),
        ({"model_type": "glm4v", "text_config": {"model_type": "glm4v_text"}}, "glm4"),
        ({"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}, "ministral3"),
        ({"model_type": "kimi_k25", "text_config": {}}, "kimi_k2"),
    ],
)
def test_a_language_model_inside_another_is_a_family(
    tmp_path: Path, fields: dict[str, Any], family: str
) -> None:
    """It is read as its own family, whose keys may stand beside those of the images."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 32}
    sizes |= {"max_position_embeddings": 16}
    if "text_config" in fields:
        outer = {**fields, "text_config": {**fields["text_config"], **sizes}}
    else:
        outer = {**fields, **sizes}
    inner = _write(tmp_path, model_type=family, **sizes)
    expected = model_config(inner)
    assert model_config(_write(tmp_path, **outer)) == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_published_configurations_have_their_parameters(tmp_path: Path, name: str) -> None:
    """The total is that of the released weights, exactly."""
    model = _write(tmp_path, **CONFIGS[name]["config"])
    assert count_parameters(model_config(model)) == CONFIGS[name]["parameters"]


def test_a_configuration_is_told_from_a_captured_workload(tmp_path: Path) -> None:
    """A path that ends in .json may be either; the content decides, and the prefix is optional."""
    prefixed = _write(tmp_path, **CONFIGS["mistral-7b"]["config"])
    path = prefixed.removeprefix("hf:")
    assert model_config(path) == model_config(prefixed)
    assert tensor_degrees(path) == (1, 2, 4, 8)
    workload = load_workload(path, sequence=64)
    assert workload.variants == load_workload(prefixed, sequence=64).variants
    captured = tmp_path / "captured.json"
    write_workload(workload, captured)
    assert load_workload(str(captured)).variants == workload.variants


def test_an_image_has_its_tokens(tmp_path: Path) -> None:
    """The sequence of a vision transformer is that of its patches."""
    model = _write(tmp_path, model_type="vit", num_hidden_layers=1)
    assert load_workload(model).sequence == 197
    with pytest.raises(InputError, match="197 tokens of its images"):
        load_workload(model, sequence=64)


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


LONG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


@pytest.mark.parametrize("tokens", [8192, 8193, 131_072])
def test_a_long_sequence_must_be_asked_for(tmp_path: Path, tokens: int) -> None:
    """What a model can read at most is no sample of its training, unless it is short or stated."""
    model = _write(tmp_path, **LONG, max_position_embeddings=tokens)
    for name in (model, model.removeprefix("hf:"), f"hf:{tmp_path}"):
        if tokens <= 8192:
            assert load_workload(name).sequence == tokens
        else:
            with pytest.raises(InputError, match=rf"up to {tokens} tokens .* --sequence 4096, or "):
                load_workload(name)
        assert load_workload(name, sequence=tokens).sequence == tokens
        assert load_workload(name, sequence=64).sequence == 64


def test_a_stated_sequence_is_asked_for(tmp_path: Path) -> None:
    """A model string states its own; images have the tokens that they have."""
    text = "llama:layers=1,hidden=64,heads=2,ffn=128,sequence=16384,vocab=128"
    assert load_workload(text).sequence == 16384
    image = _write(tmp_path, model_type="vit", image_size=1600, num_hidden_layers=1)
    assert load_workload(image).sequence == 100 * 100 + 1
