"""How the configurations of each Hugging Face ``model_type`` are read: a row of a table for each.

A configuration leaves out the keys that have the default values of its class, so the defaults of
the classes (transformers 4.57) stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.workload import huggingface_fields as fields
from phaze_opt.workload.config import LLAMA
from phaze_opt.workload.huggingface_fields import Plain

_GELU = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
_GELU_OR_RELU = {**_GELU, "relu": "relu"}
GATED = {"silu": "swiglu", "swish": "swiglu", **dict.fromkeys(_GELU, "geglu")}
_T5 = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}


@dataclass(frozen=True)
class Family:
    """How the configurations of one ``model_type`` are read.

    Attributes
    ----------
    keys
        By field of `TransformerConfig`: the key in the configuration, and its default.
    activation
        Key of the activation and its default.
    activations
        By name in the configuration: the activation of `TransformerConfig`.
    architectures
        Model classes that have the captured head, or no head. The captured head is taken where the
        configuration names no class.
    only
        Keys with the only value that can be read, beside those of every family.
    fixed
        Fields of `TransformerConfig` that all models of the family have.
    synonyms
        Other names of keys that the configuration class accepts.
    computed
        Returns the fields that hang on several keys.
    """

    keys: Mapping[str, tuple[str, object]]
    activation: tuple[str, str]
    activations: Mapping[str, str]
    architectures: tuple[str, ...]
    only: Plain = field(default_factory=dict)
    fixed: Plain = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    computed: Callable[[Plain], dict[str, Any]] = lambda plain: {}


_NO_WINDOW: Plain = {"sliding_window": None}
_BERT_KEYS = {
    "layers": ("num_hidden_layers", 12),
    "hidden": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12),
    "feed_forward": ("intermediate_size", 3072),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
_BERT_TEXT_KEYS = _BERT_KEYS | {
    "sequence": ("max_position_embeddings", 512),
    "token_types": ("type_vocab_size", 2),
    "tied": ("tie_word_embeddings", True),
    "causal": ("is_decoder", False),
}
_BERT_FIXED: Plain = {
    "norm_position": "post",
    "embedding_norm": True,
    "final_norm": False,
    "head": "masked_language_model",
}
_GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
LLAMA_KEYS: dict[str, tuple[str, object]] = {
    "layers": ("num_hidden_layers", 32),
    "hidden": ("hidden_size", 4096),
    "heads": ("num_attention_heads", 32),
    "kv_heads": ("num_key_value_heads", 0),
    "head_elements": ("head_dim", 0),
    "feed_forward": ("intermediate_size", 11008),
    "sequence": ("max_position_embeddings", 2048),
    "vocabulary": ("vocab_size", 32000),
    "attention_dropout": ("attention_dropout", 0.0),
    "tied": ("tie_word_embeddings", False),
}
QWEN_KEYS = LLAMA_KEYS | {
    "kv_heads": ("num_key_value_heads", 32),
    "feed_forward": ("intermediate_size", 22016),
    "sequence": ("max_position_embeddings", 32768),
    "vocabulary": ("vocab_size", 151936),
}
_GEMMA_KEYS = LLAMA_KEYS | {
    "layers": ("num_hidden_layers", 28),
    "hidden": ("hidden_size", 3072),
    "heads": ("num_attention_heads", 16),
    "kv_heads": ("num_key_value_heads", 16),
    "head_elements": ("head_dim", 256),
    "feed_forward": ("intermediate_size", 24576),
    "sequence": ("max_position_embeddings", 8192),
    "vocabulary": ("vocab_size", 256000),
    "tied": ("tie_word_embeddings", True),
}
_GEMMA2_KEYS = _GEMMA_KEYS | {
    "layers": ("num_hidden_layers", 26),
    "hidden": ("hidden_size", 2304),
    "heads": ("num_attention_heads", 8),
    "kv_heads": ("num_key_value_heads", 4),
    "feed_forward": ("intermediate_size", 9216),
    "attention_softcap": ("attn_logit_softcapping", 50.0),
    "logit_softcap": ("final_logit_softcapping", 30.0),
}
_GEMMA_ACTIVATION = ("hidden_act", "gelu_pytorch_tanh")
_GEMMA_NAMES = {"hidden_activation": "hidden_act"}
_ONE_WAY: Plain = {"use_bidirectional_attention": False}

FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        keys={
            "layers": ("n_layer", 12),
            "hidden": ("n_embd", 768),
            "heads": ("n_head", 12),
            "sequence": ("n_positions", 1024),
            "vocabulary": ("vocab_size", 50257),
            "feed_forward": ("n_inner", 0),
            "dropout": ("resid_pdrop", 0.1),
            "attention_dropout": ("attn_pdrop", 0.1),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("activation_function", "gelu_new"),
        activations=_GELU_OR_RELU,
        architectures=("GPT2LMHeadModel", "GPT2Model"),
        only={
            **_NO_WINDOW,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
        },
        synonyms=_GPT2_NAMES,
        computed=fields.gpt2,
    ),
    "llama": Family(
        keys=LLAMA_KEYS,
        activation=("hidden_act", "silu"),
        activations=GATED,
        architectures=("LlamaForCausalLM", "LlamaModel"),
        only={**_NO_WINDOW, "partial_rotary_factor": 1.0},
        fixed=LLAMA,
        computed=fields.llama,
    ),
    "mistral": Family(
        keys=LLAMA_KEYS
        | {
            "kv_heads": ("num_key_value_heads", 8),
            "feed_forward": ("intermediate_size", 14336),
            "sequence": ("max_position_embeddings", 131072),
        },
        activation=("hidden_act", "silu"),
        activations=GATED,
        architectures=("MistralForCausalLM", "MistralModel"),
        only={"layer_types": None},
        fixed=LLAMA,
        computed=fields.every_layer_slides(4096),
    ),
    "qwen2": Family(
        keys=QWEN_KEYS,
        activation=("hidden_act", "silu"),
        activations=GATED,
        architectures=("Qwen2ForCausalLM", "Qwen2Model"),
        fixed={**LLAMA, "query_key_value_bias": True},
        computed=fields.qwen2,
    ),
    "qwen3": Family(
        keys=QWEN_KEYS | {"head_elements": ("head_dim", 128)},
        activation=("hidden_act", "silu"),
        activations=GATED,
        architectures=("Qwen3ForCausalLM", "Qwen3Model"),
        fixed={**LLAMA, "query_key_norm": True},
        computed=fields.qwen3,
    ),
    "phi3": Family(
        keys=LLAMA_KEYS
        | {
            "hidden": ("hidden_size", 3072),
            "feed_forward": ("intermediate_size", 8192),
            "sequence": ("max_position_embeddings", 4096),
            "vocabulary": ("vocab_size", 32064),
            "dropout": ("resid_pdrop", 0.0),
        },
        activation=("hidden_act", "silu"),
        activations=GATED,
        architectures=("Phi3ForCausalLM", "Phi3Model"),
        only={"layer_types": None},
        fixed=LLAMA,
        computed=fields.phi3,
    ),
    "gemma": Family(
        keys=_GEMMA_KEYS,
        activation=_GEMMA_ACTIVATION,
        activations=GATED,
        architectures=("GemmaForCausalLM", "GemmaModel"),
        only={**_NO_WINDOW, **_ONE_WAY},
        fixed={**LLAMA, "embedding_scale": True},
        synonyms=_GEMMA_NAMES,
        computed=fields.attention_bias,
    ),
    "gemma2": Family(
        keys=_GEMMA2_KEYS,
        activation=_GEMMA_ACTIVATION,
        activations=GATED,
        architectures=("Gemma2ForCausalLM", "Gemma2Model"),
        only=_ONE_WAY,
        fixed={**LLAMA, "embedding_scale": True, "norm_position": "both"},
        synonyms=_GEMMA_NAMES,
        computed=fields.gemma(2),
    ),
    "gemma3_text": Family(
        keys=_GEMMA2_KEYS
        | {
            "sequence": ("max_position_embeddings", 131072),
            "vocabulary": ("vocab_size", 262208),
            "attention_softcap": ("attn_logit_softcapping", 0.0),
            "logit_softcap": ("final_logit_softcapping", 0.0),
        },
        activation=_GEMMA_ACTIVATION,
        activations=GATED,
        architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
        only=_ONE_WAY,
        fixed={
            **LLAMA,
            "embedding_scale": True,
            "norm_position": "both",
            "query_key_norm": True,
        },
        synonyms={**_GEMMA_NAMES, "_sliding_window_pattern": "sliding_window_pattern"},
        computed=fields.gemma(6),
    ),
    "opt": Family(
        keys={
            "layers": ("num_hidden_layers", 12),
            "hidden": ("hidden_size", 768),
            "heads": ("num_attention_heads", 12),
            "feed_forward": ("ffn_dim", 3072),
            "embedding_size": ("word_embed_proj_dim", 0),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 50272),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.0),
            "inner_dropout": ("activation_dropout", 0.0),
            "bias": ("enable_bias", True),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("activation_function", "relu"),
        activations=_GELU_OR_RELU,
        architectures=("OPTForCausalLM", "OPTModel"),
        only={**_NO_WINDOW, "layerdrop": 0.0, "layer_norm_elementwise_affine": True},
        fixed={"embedding_dropout": False},
        synonyms={"d_model": "hidden_size"},
        computed=fields.opt,
    ),
    "gpt_neox": Family(
        keys={
            "layers": ("num_hidden_layers", 44),
            "hidden": ("hidden_size", 6144),
            "heads": ("num_attention_heads", 64),
            "feed_forward": ("intermediate_size", 24576),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 50432),
            "dropout": ("hidden_dropout", 0.0),
            "attention_dropout": ("attention_dropout", 0.0),
            "tied": ("tie_word_embeddings", False),
        },
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("GPTNeoXForCausalLM", "GPTNeoXModel"),
        only=_NO_WINDOW,
        fixed={"positions": "rotary", "attention": "flash"},
        computed=fields.gpt_neox,
    ),
    "falcon": Family(
        keys={
            "layers": ("num_hidden_layers", 32),
            "hidden": ("hidden_size", 4544),
            "heads": ("num_attention_heads", 71),
            "feed_forward": ("ffn_hidden_size", 0),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 65024),
            "attention_dropout": ("attention_dropout", 0.0),
            "bias": ("bias", False),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("activation", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
        only={**_NO_WINDOW, "alibi": False, "hidden_dropout": 0.0},
        fixed={"positions": "rotary", "attention": "flash", "dropout": 0.0},
        synonyms={
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_embed": "hidden_size",
            "n_head_kv": "num_kv_heads",
        },
        computed=fields.falcon,
    ),
    "bert": Family(
        keys=_BERT_TEXT_KEYS | {"vocabulary": ("vocab_size", 30522)},
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("BertForMaskedLM", "BertLMHeadModel", "BertModel"),
        only={**_NO_WINDOW, "position_embedding_type": "absolute"},
        fixed=_BERT_FIXED,
    ),
    "roberta": Family(
        keys=_BERT_TEXT_KEYS | {"vocabulary": ("vocab_size", 50265)},
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("RobertaForMaskedLM", "RobertaForCausalLM", "RobertaModel"),
        only={**_NO_WINDOW, "position_embedding_type": "absolute"},
        fixed=_BERT_FIXED,
        computed=fields.roberta,
    ),
    "vit": Family(
        keys=_BERT_KEYS
        | {
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "image_size": ("image_size", 224),
            "patch_size": ("patch_size", 16),
            "channels": ("num_channels", 3),
        },
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("ViTForImageClassification",),
        only=_NO_WINDOW,
        fixed={"causal": False, "tied": False, "head": "classifier"},
        computed=fields.vit,
    ),
    "t5": Family(
        keys={
            "encoder_layers": ("num_layers", 6),
            "hidden": ("d_model", 512),
            "heads": ("num_heads", 8),
            "head_elements": ("d_kv", 64),
            "feed_forward": ("d_ff", 2048),
            "sequence": ("n_positions", 512),
            "vocabulary": ("vocab_size", 32128),
            "relative_buckets": ("relative_attention_num_buckets", 32),
            "dropout": ("dropout_rate", 0.1),
            "attention_dropout": ("dropout_rate", 0.1),
            "inner_dropout": ("dropout_rate", 0.1),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("feed_forward_proj", "relu"),
        activations=_T5,
        architectures=(
            "T5ForConditionalGeneration",
            "T5WithLMHeadModel",
            "T5Model",
        ),
        only={**_NO_WINDOW, "is_encoder_decoder": True},
        fixed={"norm": "rms_norm", "positions": "relative", "bias": False},
        synonyms={
            "num_hidden_layers": "num_layers",
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
        },
        computed=fields.t5,
    ),
}
"""By ``model_type``; ``gemma3`` holds a ``gemma3_text`` (`phaze_opt.workload.huggingface`).

Fused attention is taken where positions are rotary, and scores in memory elsewhere, as for the
named models of the same time.
"""
