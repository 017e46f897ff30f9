"""Configurations of torchtitan (pytorch/torchtitan, ``torchtitan/config/job_config.py``): TOML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phaze_opt.errors import InputError
from phaze_opt.interchange.imported import ImportedConfig
from phaze_opt.interchange.reading import Options

_SHAPES = {
    ("llama3", "8b"): "llama3-8b",
    ("llama3", "70b"): "llama3-70b",
    ("llama3", "405b"): "llama:layers=126,hidden=16384,heads=128,kv_heads=8,ffn=53248,"
    "sequence=8192,vocab=128256",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
}
"""Names of this project by name and flavour of a model (``torchtitan/models/*/__init__.py``)."""
_EARLIER = {
    **{
        f"training.{name}": f"parallelism.{name}"
        for name in (
            "data_parallel_replicate_degree",
            "data_parallel_shard_degree",
            "tensor_parallel_degree",
        )
    },
    **{
        f"experimental.{name}": f"parallelism.{name}"
        for name in (
            "context_parallel_degree",
            "pipeline_parallel_degree",
            "pipeline_parallel_schedule",
            "enable_async_tensor_parallel",
        )
    },
    **{"training.batch_size": "training.local_batch_size", "training.compile": "compile.enable"},
}
"""Names of today by those of earlier releases."""
_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}


def read_torchtitan_config(
    document: Mapping[str, object], model: str | None = None
) -> ImportedConfig:
    """Read a configuration of torchtitan.

    Parameters
    ----------
    document
        The TOML.
    model
        Instead of the one that it names.

    Raises
    ------
    InputError
        If it has none of the sections, or a value is not allowed.
    """
    stated = {_EARLIER.get(name, name): value for name, value in _flat(document, "")}
    options = Options("torchtitan", stated)
    name, flavour = options.text("model.name"), options.text("model.flavor")
    if name is None and options.take("training.seq_len") is None:
        raise InputError("There is no section [model] or [training] of torchtitan.")
    known = _SHAPES.get((name or "", flavour or ""))
    options.state_model(model or known, f"the model {name} {flavour}", "training.seq_len")
    _degrees(options)
    _blocks(options)
    return options.imported()


def _flat(value: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    """Yield all values of a document, sections joined by points."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{above}{key}.")
        else:
            yield f"{above}{key}", inner


def _degrees(options: Options) -> None:
    """State degrees and batch."""
    stages = options.positive("parallelism.pipeline_parallel_degree")
    tensor = options.positive("parallelism.tensor_parallel_degree")
    context = options.positive("parallelism.context_parallel_degree")
    copies = options.positive("parallelism.data_parallel_replicate_degree")
    shards = options.whole("parallelism.data_parallel_shard_degree", -1) or 1
    expert = options.positive("parallelism.expert_parallel_degree")
    options.state("pipeline", stages)
    options.state("tensor", tensor)
    if context > 1:
        options.state("context_parallel", context)
    if expert > 1:
        options.state("expert_parallel", expert)
    if tensor > 1:
        options.state("sequence_parallel", True)
    if shards > 0:
        options.state("data", copies * shards)
        options.state("devices", copies * shards * stages * tensor * context)
    kept = options.text("parallelism.fsdp_reshard_after_forward") or "default"
    if shards != 1:
        # By default weights stay gathered in a pipeline (models/llama3/infra/parallelize.py).
        options.state("zero", 2 if kept == "never" or (kept == "default" and stages > 1) else 3)
    if shards != 1 and copies > 1:
        if shards > 0:
            options.state("zero_group", shards * context)
        else:
            options.say(f"data_parallel_replicate_degree {copies}: shared out among all replicas")
    local = options.whole("training.local_batch_size")
    size = options.whole("parallelism.pipeline_parallel_microbatch_size", 1)
    microbatch = size if stages > 1 else local
    if microbatch is not None:
        options.state("microbatch", microbatch)
    batch = options.whole("training.global_batch_size", -1)
    if batch is not None and batch > 0:
        options.state("global_batch", batch)
    elif local is not None and shards > 0:
        options.state("global_batch", local * copies * shards)
    schedule = options.text("parallelism.pipeline_parallel_schedule")
    if stages > 1 and schedule is not None:
        if schedule in _SCHEDULES:
            options.state("pipeline_schedule", _SCHEDULES[schedule])
            if schedule == "interleaved1f1b":
                options.state("interleave", 2)
        else:
            options.say(f"pipeline_parallel_schedule {schedule}")


def _blocks(options: Options) -> None:
    """State how blocks run: compiled or not, what runs again, and in how many bits."""
    compiled = options.is_on("compile.enable")
    options.state("software", "torchtitan-compiled" if compiled else "torchtitan-eager")
    if options.text("optimizer.implementation") == "fused":
        options.state("optimizer", "adam")
    if options.is_on("parallelism.enable_async_tensor_parallel"):
        options.state("overlap", "all")
    mode = options.text("activation_checkpoint.mode") or "selective"
    kind = options.text("activation_checkpoint.selective_ac_option")
    if mode in ("none", "selective", "full"):
        options.state("recompute", mode)
    else:
        options.say(f"activation_checkpoint.mode {mode}: left open")
    if mode == "selective" and kind not in (None, "op"):
        options.say(f"selective_ac_option {kind}: stated as op")
    if options.is_on("training.enable_cpu_offload"):
        options.say("training.enable_cpu_offload")
    if (multiplied := options.text("training.mixed_precision_param")) not in (None, "bfloat16"):
        options.say(f"training.mixed_precision_param {multiplied}: stated as bfloat16")
    if options.text("training.mixed_precision_reduce") == "bfloat16":
        options.state("gradient_dtype", "bf16")
    converters = options.take("model.converters")
    listed = [str(each) for each in converters] if isinstance(converters, list) else []
    sections = ("quantize.linear.float8", "float8")
    recipes = [options.text(f"{section}.recipe_name") for section in sections]
    gathered = [options.is_on(f"{each}.enable_fsdp_float8_all_gather") for each in sections]
    if any("mx" in name for name in listed):
        options.state("precision", "mxfp8")
    elif any("float8" in name for name in listed):
        options.state("precision", "fp8-row" if "rowwise" in recipes else "fp8")
        options.state("fp8_param_gather", any(gathered))
