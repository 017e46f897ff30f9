"""Configurations of MaxText (AI-Hypercomputer/maxtext, ``configs/base.yml``): YAML."""

from __future__ import annotations

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
    "data": ("data", "fsdp", "fsdp_transpose"),
    "tensor": ("tensor", "tensor_sequence"),
    "pipeline": ("pipeline",),
    "context_parallel": ("context", "sequence"),
    "expert_parallel": ("expert",),
}
"""Mesh axes by column; of fsdp, weights are shared out."""
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
    if shape is None and model is None:
        options.say(f"the model {named}: name one with --model")
    options.state("model", model or shape or "")
    if (sequence := options.whole("max_target_length")) is not None:
        options.state("sequence", sequence)
    _degrees(options)
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
    options.take("attention")
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
    """State degrees and batch; one axis may be -1, for what is left of the devices."""
    open_column = None
    for column, axes in _AXES.items():
        degree = 1
        for axis in axes:
            for network in ("ici", "dcn"):
                size = options.whole(f"{network}_{axis}_parallelism", 1)
                if size == -1:
                    open_column = column
                    size = 1
                degree *= size or 1
                if axis.startswith("fsdp") and size != 1:
                    options.state("zero", 3)
        if degree > 1 or column in ("pipeline", "tensor"):
            options.state(column, degree)
    if open_column == "data" and "data" in options.row:
        del options.row["data"]
    if open_column is not None and options.whole("ici_fsdp_parallelism") == -1:
        options.state("zero", 3)
    if options.whole("ici_tensor_sequence_parallelism", 1) != 1:
        options.state("sequence_parallel", True)
    slices = options.whole("num_slices")
    if slices not in (None, 1):
        options.say(f"num_slices {slices}: several slices over a data-centre network")
    each = options.text("per_device_batch_size")
    if each is None:
        return
    try:
        samples = float(each)
    except ValueError:
        raise InputError(f"per_device_batch_size is {each!r}, but it must be a number.") from None
    if not 0.0 < samples < MOST_SAMPLES:
        raise InputError(f"per_device_batch_size is {each}, but it must be positive and finite.")
    steps = options.positive("gradient_accumulation_steps")
    tensor = int(options.row.get("tensor", "1"))
    options.state("microbatch", max(1, round(samples * tensor)))
    if "data" in options.row:
        devices = int(options.row["data"]) * tensor * int(options.row.get("pipeline", "1"))
        devices *= int(options.row.get("context_parallel", "1"))
        options.state("devices", devices)
        options.state("global_batch", max(1, round(samples * devices * steps)))
