"""Configurations of MaxText (AI-Hypercomputer/maxtext, ``configs/base.yml``): YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping

from phaze_opt.errors import InputError
from phaze_opt.interchange.imported import ImportedConfig
from phaze_opt.interchange.reading import Options, model_string
from phaze_opt.limits import MOST_SAMPLES

_SHAPES = {
    **{"llama2-7b": "llama2-7b", "llama3-8b": "llama3-8b", "llama3.1-8b": "llama3-8b"},
    **{"llama3-70b": "llama3-70b", "llama3.1-70b": "llama3-70b", "gpt3-175b": "gpt3-175b"},
    **{"mixtral-8x7b": "mixtral-8x7b", "deepseek3-671b": "deepseek-v3"},
    **{"qwen3-30b-a3b": "qwen3-30b-a3b", "qwen3-235b-a22b": "qwen3-235b-a22b"},
    **{"gpt-oss-20b": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b"},
}
"""Names of this project by ``model_name`` (``configs/models/*.yml``)."""
_AXES = {
    "data": ("data", "fsdp", "fsdp_transpose", "expert"),
    "tensor": ("tensor", "tensor_sequence"),
    "pipeline": ("pipeline",),
    "context_parallel": ("context", "sequence"),
    "expert_parallel": ("expert",),
}
"""Mesh axes by column: those of experts divide the batch too (``logical_axis_rules``)."""
_SHARED = ("fsdp", "fsdp_transpose")
"""Axes along which weights are shared out."""
_NETWORKS = ("ici", "dcn")
_POLICIES = {"full": "full", "minimal_with_context": "selective", "none": "none"}
_RECIPES = {"int8": "int8", "fp8": "fp8", "fp8_full": "fp8", "nanoo_fp8": "fp8", "aqt_fp8": "fp8"}


def read_maxtext_config(document: Mapping[str, object], model: str | None = None) -> ImportedConfig:
    """Read a configuration of MaxText.

    Parameters
    ----------
    document
        The YAML.
    model
        Instead of the one that it names.

    Raises
    ------
    InputError
        If it has none of the options, or a value is not allowed.
    """
    options = Options("maxtext", document)
    named = options.text("model_name")
    if named is None and options.take("per_device_batch_size") is None:
        raise InputError("There is none of MaxText's options, such as per_device_batch_size.")
    shape = _SHAPES.get(named or "") or _shape(options)
    options.state_model(model or shape, f"the model {named}", "max_target_length")
    _degrees(options)
    _experts(options)
    policy = options.text("remat_policy") or "full"
    if policy in _POLICIES:
        options.state("recompute", _POLICIES[policy])
    else:
        options.say(f"remat_policy {policy}: left open")
    recipe = options.text("quantization")
    if recipe:
        if recipe in _RECIPES:
            options.state("precision", _RECIPES[recipe])
        else:
            options.say(f"quantization {recipe}")
    attention = options.text("attention") or "autoselected"
    if "flash" not in attention and attention != "autoselected":
        options.say(f"attention {attention}")
    optimizer = options.text("opt_type") or "adamw"
    if optimizer == "sgd":
        options.state("optimizer", "sgd")
    elif optimizer not in ("adamw", "adam_pax"):
        options.say(f"opt_type {optimizer}: stated as adamw")
    options.state("software", "maxtext")
    return options.imported()


def _shape(options: Options) -> str | None:
    """Return the shape that is stated number by number; the scale applies as in pyconfig.py."""
    scale = options.whole("global_parameter_scale", 1)
    if scale != 1:
        options.say(f"global_parameter_scale {scale}: state the sizes, or name a model")
        return None
    return model_string(
        "llama",
        {
            "layers": options.whole("base_num_decoder_layers"),
            "hidden": options.whole("base_emb_dim"),
            "heads": options.whole("base_num_query_heads"),
            "kv_heads": options.whole("base_num_kv_heads"),
            "head_dim": options.whole("head_dim"),
            "ffn": options.whole("base_mlp_dim"),
            "sequence": options.whole("max_target_length"),
            "vocab": options.whole("vocab_size"),
        },
    )


def _degrees(options: Options) -> None:
    """State degrees and batch."""
    sizes = {axis: _size(options, axis) for axes in _AXES.values() for axis in axes}
    named = (f"{network}_{axis}_parallelism" for network in _NETWORKS for axis in _AXES["data"])
    if all(options.take(name) is None for name in named):
        sizes["fsdp"] = None  # as base.yml has it
    degrees: dict[str, int] = {}
    for column, axes in _AXES.items():
        along = [sizes[axis] for axis in axes]
        if None not in along:
            degrees[column] = math.prod(filter(None, along))
        elif column != "data":
            options.say(f"{column} of what is left of the devices: state its size")
    for column, degree in degrees.items():
        if degree > 1 or column in ("pipeline", "tensor"):
            options.state(column, degree)
    if sizes["tensor_sequence"] != 1:
        options.state("sequence_parallel", True)
    _sharing(options, sizes, degrees)
    slices = options.whole("num_slices")
    if slices not in (None, 1):
        options.say(f"num_slices {slices}: several slices over a data-centre network")
    _batch(options, degrees)


def _size(options: Options, axis: str) -> int | None:
    """Return the devices along an axis; ``None`` for -1, what is left of them."""
    names = [f"{network}_{axis}_parallelism" for network in _NETWORKS]
    if -1 in [options.whole(name) for name in names]:
        return None
    return math.prod(options.positive(name) for name in names)


def _sharing(options: Options, sizes: Mapping[str, int | None], degrees: Mapping[str, int]) -> None:
    """State among which replicas weights are shared out."""
    shared = [sizes[axis] for axis in _SHARED]
    if shared == [1, 1]:
        return
    # All other weights are shared out along the axis of the experts too (``logical_axis_rules``).
    shared.append(sizes["expert"])
    options.state("zero", 3)
    if sizes["data"] == 1:
        return
    if None in shared or "context_parallel" not in degrees:
        options.say("data parallelism beside fsdp: weights shared out among all replicas")
    else:
        options.state("zero_group", math.prod(filter(None, shared)) * degrees["context_parallel"])


def _batch(options: Options, degrees: Mapping[str, int]) -> None:
    """State the batch, and devices where all degrees are known."""
    samples = options.number("per_device_batch_size")
    if samples is None:
        return
    if not 0.0 < samples < MOST_SAMPLES:
        raise InputError(f"per_device_batch_size is {samples}, but it must be positive and finite.")
    steps = options.positive("gradient_accumulation_steps")
    parts = options.whole("num_pipeline_microbatches", -1)
    if not {"tensor", "context_parallel", "pipeline"} <= degrees.keys():
        return
    replica = degrees["tensor"] * degrees["context_parallel"] * degrees["pipeline"]
    # As many microbatches as stages by default.
    parts = parts if parts is not None and parts > 0 else degrees["pipeline"]
    options.state("microbatch", max(1, round(samples * replica / parts)))
    if "data" in degrees:
        devices = degrees["data"] * replica
        options.state("devices", devices)
        options.state("global_batch", max(1, round(samples * devices * steps)))


def _experts(options: Options) -> None:
    """State what experts take where their products are not those of the tokens that come."""
    capacity = options.number("capacity_factor")
    if options.text("sparse_matmul") != "false":
        return
    if capacity is not None and capacity > 0.0:
        options.state("expert_capacity", capacity)
    else:
        options.say("sparse_matmul false without a capacity_factor")
