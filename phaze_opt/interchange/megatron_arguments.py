"""Arguments of Megatron-LM: a list of them, or the shell script that starts a run.

The names are those of ``megatron/training/arguments.py`` (NVIDIA/Megatron-LM). Of a script, the
variables that it sets itself are put in; nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

from phaze_opt.errors import InputError
from phaze_opt.interchange.imported import ImportedConfig
from phaze_opt.interchange.reading import Options, model_string

_ASSIGNED = re.compile(
    r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s#(]*)\s*(?:#.*)?$"
)
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_RECIPES = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8-block", "mxfp8": "mxfp8"}
_SEVERAL = ("recompute-modules", "data-path")
"""Arguments that take several values."""
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def read_megatron_arguments(text: str, model: str | None = None) -> ImportedConfig:
    """Read arguments of Megatron-LM.

    Parameters
    ----------
    text
        Of the file.
    model
        Instead of the shape that the arguments state.

    Raises
    ------
    InputError
        If it cannot be read as shell words, has none of the arguments, or a value is not allowed.
    """
    options = Options("megatron", dict(_arguments(text)))
    if options.take("num-layers") is None and options.take("micro-batch-size") is None:
        raise InputError("There are no arguments of Megatron-LM, such as --num-layers 32.")
    shape = "a shape of which sizes are not stated"
    options.state_model(model or _model(options), shape, "seq-length")
    nodes, each = options.whole("nnodes"), options.whole("nproc_per_node")
    nodes = nodes if nodes is not None else options.whole("nnode")
    each = each if each is not None else options.whole("nproc-per-node")
    if each is not None:
        options.state("devices", each * (nodes or 1))
    _degrees(options)
    _memory(options)
    _precision(options)
    _communication(options)
    options.state("software", "megatron")
    _optimizer(options)
    if options.is_on("enable-cuda-graph") or options.is_on("external-cuda-graph"):
        options.state("launch", "graphs")
    return options.imported()


def _optimizer(options: Options) -> None:
    """State the optimizer, and in how many bits it holds what."""
    moments = {options.text(f"exp-avg{each}-dtype") or "fp32" for each in ("", "-sq")}
    if options.text("optimizer") == "sgd":
        options.state("optimizer", "sgd")
    elif moments == {"bf16"}:
        options.state("optimizer", "adam-bf16")
    elif moments != {"fp32"}:
        options.say(f"moments in {' and '.join(sorted(moments))}: stated as fp32")
    if (main := options.text("main-params-dtype")) not in (None, "fp32"):
        options.say(f"main-params-dtype {main}: stated as fp32")


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values; a switch is ``true``, several values stand with spaces between."""
    lines = text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines()
    known: dict[str, str] = {}

    def put_in(words: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1] or found[3]
            return known.get(name, found[2] if found[2] is not None else found[0])

        return _USED.sub(value, words)

    for line in lines:
        assigned = _ASSIGNED.match(line)
        if assigned is not None:
            known[assigned[1]] = put_in(assigned[2].strip("\"'"))
        try:
            words = shlex.split(put_in(line), comments=True)
        except ValueError:
            continue  # a quote over several lines, which is text of a script and no argument
        yield from _of_line([word.strip("()") for word in words])


def _of_line(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a line, which holds their values too."""
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        name, equals, value = words[start][2:].partition("=")
        values = [value] if equals else [word for word in words[start + 1 : end] if word]
        # What follows a single value is the program, and its own arguments.
        yield name, " ".join(values if name in _SEVERAL else values[:1]) or "true"


def _model(options: Options) -> str | None:
    """Return the shape of the model as a string."""
    sequence = options.whole("seq-length")
    vocabulary = options.whole("padded-vocab-size") or options.whole("vocab-size")
    gated = options.is_on("swiglu")
    hidden = options.whole("hidden-size")
    inner = options.whole("ffn-hidden-size")
    sizes: dict[str, object | None] = {
        "layers": options.whole("num-layers"),
        "hidden": hidden,
        "heads": options.whole("num-attention-heads"),
        "ffn": inner,
        "sequence": sequence,
        "vocab": vocabulary,
    }
    groups = options.whole("num-query-groups")
    if options.is_on("group-query-attention") and groups is not None:
        sizes["kv_heads"] = groups
    sizes["head_dim"] = options.whole("kv-channels")
    experts = options.whole("num-experts")
    normalised = options.text("normalization") == "rmsnorm"
    untied = options.is_on("untie-embeddings-and-output-weights")
    like_gpt = experts is None and not (gated and normalised)
    if untied == like_gpt:
        ours, other = ("tied to", "untied from") if untied else ("untied from", "tied to")
        options.say(f"embedding {other} the head: stated as {ours} it")
    if options.is_on("qk-layernorm"):
        options.say("qk-layernorm")
    dropout, after = options.number("attention-dropout"), options.number("hidden-dropout")
    if dropout != after:
        options.say(f"hidden-dropout {after}: stated as attention-dropout, {dropout}")
    sizes["dropout"] = dropout
    if experts is not None:
        return model_string("moe", {**_without(sizes, "ffn"), **_experts(options, experts, inner)})
    if not like_gpt:
        return model_string("llama", sizes)
    if gated or normalised or groups is not None:
        options.say("a block that is neither GPT-2's nor Llama's: stated as GPT-2's")
    backend = options.text("attention-backend")
    fused = options.is_on("use-flash-attn") or backend in ("flash", "fused", "auto")
    sizes["attention"] = "flash" if fused else None
    return model_string("gpt", _without(sizes, "kv_heads", "head_dim"))


def _without(sizes: dict[str, object | None], *names: str) -> dict[str, object | None]:
    """Return sizes but for some."""
    return {name: value for name, value in sizes.items() if name not in names}


def _experts(options: Options, count: int, inner: int | None) -> dict[str, object | None]:
    """Return the sizes of experts and of latent attention."""
    width = options.whole("moe-ffn-hidden-size") or inner
    sizes: dict[str, object | None] = {
        "experts": count,
        "top_k": options.whole("moe-router-topk", 2),
        "expert_ffn": width,
    }
    shared = options.whole("moe-shared-expert-intermediate-size")
    if shared and width:
        if shared % width:
            options.say(f"moe-shared-expert-intermediate-size {shared}, no multiple of {width}")
        sizes["shared"] = max(1, round(shared / width))
    pattern = options.text("moe-layer-freq")
    dense = re.match(r"\(\[0\]\*(\d+)\+\[1\]\*\d+\)|\[0\]\*(\d+)\+\[1\]\*\d+", pattern or "")
    if dense:
        sizes |= {"dense_layers": int(dense[1] or dense[2]), "ffn": inner}
    elif pattern not in (None, "1"):
        options.say(f"moe-layer-freq {pattern}")
    if options.is_on("multi-latent-attention"):
        sizes |= {
            "kv_rank": options.whole("kv-lora-rank", 512),
            "q_rank": options.whole("q-lora-rank"),
            "nope_dim": options.whole("qk-head-dim", 128),
            "rope_dim": options.whole("qk-pos-emb-head-dim", 64),
            "v_dim": options.whole("v-head-dim", 128),
        }
    return sizes


def _degrees(options: Options) -> None:
    """State degrees, batch and pipeline schedule."""
    stages = options.positive("pipeline-model-parallel-size")
    options.state("pipeline", stages)
    options.state("tensor", options.positive("tensor-model-parallel-size"))
    for name, column in (
        ("context-parallel-size", "context_parallel"),
        ("expert-model-parallel-size", "expert_parallel"),
    ):
        if (degree := options.positive(name)) > 1:
            options.state(column, degree)
    of_expert = options.whole("expert-tensor-parallel-size")
    # Not stated, it is the tensor-parallel group's.
    if of_expert not in (None, int(options.row["tensor"])) and options.take("num-experts"):
        options.state("expert_tensor_parallel", of_expert)
    for name, column in (("global-batch-size", "global_batch"), ("micro-batch-size", "microbatch")):
        if (size := options.whole(name)) is not None:
            options.state(column, size)
    if options.is_on("sequence-parallel"):
        options.state("sequence_parallel", True)
    chunks = options.whole("num-virtual-stages-per-pipeline-rank")
    each, layers = (
        options.whole("num-layers-per-virtual-pipeline-stage"),
        options.whole("num-layers"),
    )
    if each and layers and layers % (stages * each) == 0:
        chunks = layers // (stages * each)
    if chunks is not None and chunks > 1:
        options.state("interleave", chunks)
        options.state("pipeline_schedule", "interleaved")


def _memory(options: Options) -> None:
    """State what is shared out, and what runs again."""
    sharding = options.text("data-parallel-sharding-strategy")
    if sharding in _SHARDING and sharding != "no_shard":
        options.state("zero", _SHARDING[sharding])
    elif options.is_on("use-distributed-optimizer"):
        options.state("zero", 1)
    if "zero" in options.row:
        _groups(options)
    granularity = options.text("recompute-granularity")
    if options.is_on("recompute-activations"):
        granularity = "selective"
    options.state("recompute", granularity or "none")
    modules = options.text("recompute-modules")
    if granularity == "selective" and modules:
        options.state("recompute_parts", ",".join(modules.split()))
    method, layers = options.text("recompute-method"), options.whole("recompute-num-layers")
    if granularity == "full" and (method == "block" or layers not in (None, 1)):
        options.say(f"recompute-method {method} with {layers} layers: a checkpoint per layer here")


def _groups(options: Options) -> None:
    """State among how many replicas states are shared out, where groups of them hold copies."""
    copies = options.positive("num-distributed-optimizer-instances")
    if copies == 1:
        return
    if "devices" not in options.row:
        options.say(f"num-distributed-optimizer-instances {copies}: all replicas share here")
        return
    total, stages, each = (int(options.row[name]) for name in ("devices", "pipeline", "tensor"))
    options.state("zero_group", total // (stages * each * copies))


def _precision(options: Options) -> None:
    """State in what linear layers multiply."""
    recipe = options.text("fp8-recipe") or "delayed"
    if options.text("fp4-format") is not None:
        options.state("precision", "nvfp4")
    elif options.text("fp8-format") is not None:
        if recipe in _RECIPES:
            options.state("precision", _RECIPES[recipe])
        else:
            options.say(f"fp8-recipe {recipe}")
        if options.is_on("fp8-param-gather"):
            options.state("fp8_primary_weights", True)
            options.state("fp8_param_gather", recipe != "mxfp8")
    # Each is what the buffer of gradients is allocated in, not only what goes over the network.
    narrow = options.is_on("grad-reduce-in-bf16") or options.text("main-grads-dtype") == "bf16"
    wide = options.is_on("accumulate-allreduce-grads-in-fp32")
    if narrow or wide:
        options.state("accumulation_dtype", "bf16" if narrow else "fp32")
    if options.is_on("no-gradient-accumulation-fusion"):
        options.state("fused_accumulation", False)


def _communication(options: Options) -> None:
    """State what runs beside compute, and what sends tokens to their experts."""
    reduced = options.is_on("overlap-grad-reduce")
    overlap = "data" if reduced else "none"
    if options.is_on("overlap-moe-expert-parallel-comm"):
        overlap = "experts"
    if options.is_on("tp-comm-overlap"):
        overlap = "all"
    options.state("overlap", overlap)
    kind = options.text("moe-token-dispatcher-type")
    backend = options.text("moe-flex-dispatcher-backend")
    if options.is_on("moe-enable-deepep"):
        backend = "deepep"
    if kind == "flex":
        options.state("dispatcher", "hybridep" if backend == "hybridep" else "deepep")
    elif kind is not None:
        options.state("dispatcher", "nccl")
        if kind != "alltoall":
            options.say(f"moe-token-dispatcher-type {kind}: stated as alltoall")
