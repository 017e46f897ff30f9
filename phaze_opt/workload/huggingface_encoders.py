"""How the configurations of BERT, RoBERTa, ViT and T5 are read: models with an encoder.

A table as `phaze_opt.workload.huggingface_families` has it. Scores are in memory, as for the named
models of the same time.
"""

from __future__ import annotations

from collections.abc import Mapping

from phaze_opt.workload import huggingface_fields as fields
from phaze_opt.workload.huggingface_families import GELU_OR_RELU, NO_WINDOW, Family
from phaze_opt.workload.huggingface_fields import Plain

_T5 = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
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

ENCODER_FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        keys=_BERT_TEXT_KEYS | {"vocabulary": ("vocab_size", 30522)},
        activation=("hidden_act", "gelu"),
        activations=GELU_OR_RELU,
        architectures=("BertForMaskedLM", "BertLMHeadModel", "BertModel"),
        only={**NO_WINDOW, "position_embedding_type": "absolute"},
        fixed=_BERT_FIXED,
    ),
    "roberta": Family(
        keys=_BERT_TEXT_KEYS | {"vocabulary": ("vocab_size", 50265)},
        activation=("hidden_act", "gelu"),
        activations=GELU_OR_RELU,
        architectures=("RobertaForMaskedLM", "RobertaForCausalLM", "RobertaModel"),
        only={**NO_WINDOW, "position_embedding_type": "absolute"},
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
        activations=GELU_OR_RELU,
        architectures=("ViTForImageClassification",),
        only=NO_WINDOW,
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
        only={**NO_WINDOW, "is_encoder_decoder": True},
        fixed={"norm": "rms_norm", "positions": "relative", "bias": False},
        synonyms={
            "num_hidden_layers": "num_layers",
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
        },
        computed=fields.t5,
    ),
}
"""By ``model_type``."""
