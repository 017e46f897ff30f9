"""Workloads by name: the models of the paper, any GPT or Llama shape, configurations and files."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

from msgspec import UNSET

from phaze_opt.checked import Named, checked
from phaze_opt.choices import AttentionKind
from phaze_opt.codec import data_table, from_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.limits import MOST_SAMPLES, check_size
from phaze_opt.training import Training
from phaze_opt.workload.cache import CachedVariant, CaptureKey, read_variant, write_variant
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Workload, expert_tensor_of
from phaze_opt.workload.huggingface import is_huggingface_config, read_huggingface_config
from phaze_opt.workload.huggingface_images import AskedImages
from phaze_opt.workload.model_string import is_model_string, parse_model_string
from phaze_opt.workload.trained import Trained, trained_parts
from phaze_opt.workload.workload_file import read_workload, select_variants

_HUGGING_FACE, _FILE = "hf:", ".json"
_ADDED = re.compile(
    r"(?:\+images(?P<images>[1-9]\d{0,5})(?:x(?P<edge>[1-9]\d{0,5}))?)?"
    r"(?P<ahead>\+mtp(?P<layers>[1-9]\d{0,5})?)?$"
)
"""What a name adds to a model: images of every sample, and layers that predict further ahead."""
_LARGEST_MICROBATCH = 2**16

LONGEST_UNSTATED_SEQUENCE = 8192
"""Tokens per sample up to which a configuration's largest sequence is taken for that of training.

Configurations for longer ones state what a model can read in the end, not the samples of most of
its training: Llama 3.1 states 131,072 and was trained on 8,192 until its last stages (Grattafiori
et al. 2024, section 3.4).
"""


@checked
def load_workload(
    model: Annotated[Named, "the name or the path of a model"],
    *,
    tensor_parallel: Sequence[int] = (1,),
    microbatch: Sequence[int] = (1,),
    sequence_parallel: bool = False,
    sequence: int | None = None,
    attention: AttentionKind | None = None,
    context_parallel: Sequence[int] = (1,),
    expert_tensor_parallel: Sequence[int] = (0,),
    expert_capacity: Sequence[float] = (0.0,),
    frozen: Sequence[str] = (),
    lora_rank: int = 0,
    lora_targets: Sequence[str] = (),
) -> Workload:
    """Return a model at some tensor degrees and microbatches, from the cache where possible.

    Parameters
    ----------
    model
        A name of `model_names`; ``gpt:``, ``llama:`` or ``moe:`` with sizes; the path, ending in
        ``.json``, of a captured workload or of a Hugging Face configuration, which are told apart
        by their content; or ``hf:`` with the path of a configuration or of its folder. ``+mtp``
        at the end of any but a captured workload adds the layers that predict tokens further ahead
        (multi-token prediction): as many as a configuration states, else one; ``+mtp2`` adds two.
        ``+images2`` before that gives every sample two images, through the tower of a configuration
        of images and text; ``+images2x896`` says how large they are.
    tensor_parallel, microbatch
        Tensor degrees and microbatches (samples) to capture, in every combination.
    sequence_parallel
        Whether tensor-parallel groups also split the sequence; no choice at tensor degree 1.
    sequence
        Tokens per sample, instead of the model's own. A learned position table keeps its rows, or
        grows to the sequence. It must be stated for a configuration whose own is above
        `LONGEST_UNSTATED_SEQUENCE`.
    attention
        ``eager`` (scores in memory) or ``flash`` (one fused core), instead of the model's own;
        the workload's name says so.
    context_parallel
        Among how many devices every sequence is shared; captured in every combination, too.
    expert_tensor_parallel
        Over how many devices each routed expert is split, 0 for those of the tensor-parallel
        group; captured in every combination with tensor degrees that are this number or 1, or
        split the sequence.
    expert_capacity
        Rows of every expert relative to even routing, 0 for the tokens that come; captured in
        every combination, too.
    frozen, lora_rank, lora_targets
        What of the model is not trained, or which adapters are trained instead of it, see
        `phaze_opt.workload.trained.Trained`; the workload's name says so.

    Raises
    ------
    InputError
        If the model is unknown, a tensor degree or number of devices does not divide it, nothing
        of it would be trained, or a number is not allowed or missing.
    NotFoundError
        If there is no such file.
    """
    model = os.fspath(model)
    trained = trained_parts(frozen, lora_rank, lora_targets)
    _refuse_empty(
        tensor_parallel=tensor_parallel,
        microbatch=microbatch,
        context_parallel=context_parallel,
        expert_tensor_parallel=expert_tensor_parallel,
        expert_capacity=expert_capacity,
    )
    asked = _Combinations(
        _splits(tensor_parallel, expert_tensor_parallel, sequence_parallel),
        microbatch,
        sequence_parallel,
        context_parallel,
        expert_capacity,
    )
    if _is_captured(model):
        return _from_file(model, asked, sequence, attention, trained)
    config = model_config(model, sequence)
    _refuse_unstated_sequence(config, model, sequence)
    for of_expert in filter(None, expert_tensor_parallel):
        config.require_expert_tensor(of_expert, model=model)
    name = model
    if attention is not None and attention != config.attention:
        config = config.with_attention(attention)
        name = f"{name}, {attention} attention"
    if trained is not None:
        config = replace(config, trained=trained)
        name = f"{name}, {trained.words}"
    cached = _variants_of(config, model, asked, tensor_parallel)
    return Workload(
        model=name,
        sequence=config.sequence,
        parameters=cached[0].parameters,
        variants=tuple(entry.variant for entry in cached),
        active_parameters=cached[0].active_parameters,
    )


class _Combinations(NamedTuple):
    """What a model is captured for, in every combination: as `select_variants` takes it.

    Attributes
    ----------
    splits
        Tensor degrees, each with the devices over which an expert is split.
    microbatch, sequence_parallel, context_parallel, expert_capacity
        See `load_workload`.
    """

    splits: Sequence[tuple[int, int]]
    microbatch: Sequence[int]
    sequence_parallel: bool
    context_parallel: Sequence[int]
    expert_capacity: Sequence[float]


def _refuse_empty(**asked: Sequence[float]) -> None:
    """Refuse options without a number."""
    for name, numbers in asked.items():
        if not numbers:
            raise InputError(f"{name} is empty. At least one number is needed.")


def _variants_of(
    config: TransformerConfig, model: str, asked: _Combinations, tensor_parallel: Sequence[int]
) -> list[CachedVariant]:
    """Return every combination from the cache, or capture it."""
    cached: list[CachedVariant] = []
    shared, capacities = sorted(set(asked.context_parallel)), sorted(set(asked.expert_capacity))
    for devices, capacity in itertools.product(shared, capacities):
        share = _share_of_tokens(config, model, devices)
        share = share.with_expert_capacity(capacity, model=model)
        _refuse_impossible(share, model, tensor_parallel, asked.microbatch, asked.sequence_parallel)
        keys = [
            CaptureKey(
                share,
                tensor_degree,
                samples,
                asked.sequence_parallel and tensor_degree > 1,
                expert_tensor=of_expert or UNSET,
            )
            for tensor_degree, of_expert in asked.splits
            for samples in sorted(set(asked.microbatch))
        ]
        found = (read_variant(key) or _capture(key) for key in keys)
        cached += [_as_shared(each, devices, capacity) for each in found]
    return cached


class LoadWorkload(Protocol):
    """Loads one model under options that vary."""

    def __call__(self, training: Training, tensor: int | None) -> Workload:
        """Load it as a training needs it.

        Parameters
        ----------
        training
            Says the microbatch, and how sequences and experts are split.
        tensor
            Tensor degree; ``None`` for all that divide the model.

        Raises
        ------
        InputError
            If it cannot be captured so.
        """


def model_loader(
    model: str,
    sequence: int | None = None,
    attention: AttentionKind | None = None,
    trained: Trained | None = None,
) -> LoadWorkload:
    """Return what loads a model under other options by its name or from its file.

    Parameters
    ----------
    model, sequence, attention
        As `load_workload` takes them.
    trained
        What is trained, where it is not all.
    """

    def load(training: Training, tensor: int | None) -> Workload:
        return load_workload(
            model,
            tensor_parallel=tensor_degrees(model, trained) if tensor is None else (tensor,),
            microbatch=(training.microbatch,),
            sequence_parallel=training.sequence_parallel,
            sequence=sequence,
            attention=attention,
            context_parallel=(training.context_parallel,),
            expert_tensor_parallel=(training.expert_tensor_parallel,),
            expert_capacity=(training.expert_capacity,),
            **({} if trained is None else asdict(trained)),
        )

    return load


def model_names() -> tuple[str, ...]:
    """Return the names of the models that come with the package."""
    return tuple(_models())


def names_a_shape(model: str) -> bool:
    """Say whether a model is defined by its name alone, without a file."""
    return is_model_string(model) or _base(model) in _models()


def model_config(model: str, sequence: int | None = None) -> TransformerConfig:
    """Return the shape of a model that is not a captured file.

    Parameters
    ----------
    model
        As for `load_workload`.
    sequence
        Tokens per sample, instead of the model's own.
    """
    base, added = _base(model), _ADDED.search(model)
    assert added is not None  # it may be empty
    ahead, stated = added["ahead"] is not None, int(added["layers"] or 0)
    images = None
    if added["images"]:
        images = AskedImages(int(added["images"]), int(added["edge"] or 0))
        if not _is_file(base):
            raise InputError(
                f"{model} asks for images, but only the configuration of a model of images and "
                "text has a tower for them; leave +images out."
            )
    if _is_file(base):
        path = Path(base.removeprefix(_HUGGING_FACE))
        config = read_huggingface_config(path, predicts_ahead=ahead, images=images)
        if stated:
            config = replace(config, prediction_layers=stated)
    elif is_model_string(base) or base in _models():
        config = parse_model_string(base) if is_model_string(base) else _models()[base]
        if ahead:
            config = replace(config, prediction_layers=stated or config.prediction_layers or 1)
    else:
        allowed = (*_models(), "gpt:...", "llama:...", "moe:...", "hf:PATH", "FILE.json")
        raise unknown_name("model", model, allowed)
    if sequence in (None, config.sequence):
        return config
    if config.patch_size:
        raise InputError(
            f"{model} has the {config.sequence} tokens of its images; they cannot be changed to "
            f"{sequence}."
        )
    return replace(config, sequence=sequence, position_rows=config.position_table_rows)


def check_sequence(model: str, sequence: int | None) -> None:
    """Refuse tokens per sample as `load_workload` does, without capturing anything.

    Raises
    ------
    InputError
        If they must be stated, or cannot be changed.
    """
    if not _is_captured(model):
        _refuse_unstated_sequence(model_config(model, sequence), model, sequence)


def tensor_degrees(model: str, trained: Trained | None = None) -> tuple[int, ...]:
    """Return the tensor degrees among 1, 2, 4 and 8 that divide the model, and its adapters.

    For a captured file these are the tensor degrees that it holds.
    """
    if _is_captured(model):
        return tuple(
            sorted({variant.tensor_parallel for variant in read_workload(Path(model)).variants})
        )
    config = model_config(model)
    return (config if trained is None else replace(config, trained=trained)).tensor_degrees()


def microbatches(model: str) -> tuple[int, ...] | None:
    """Return the microbatches that a captured file holds; ``None`` for any other model."""
    if not _is_captured(model):
        return None
    return tuple(sorted({variant.microbatch for variant in read_workload(Path(model)).variants}))


def _base(model: str) -> str:
    """Return the model without what its name adds."""
    return _ADDED.sub("", model)


def _is_file(model: str) -> bool:
    """Say whether a model is the path of a configuration or of a captured workload."""
    model = _base(model)
    return model.startswith(_HUGGING_FACE) or model.endswith(_FILE)


def _is_captured(model: str) -> bool:
    """Say whether a model is the path of a captured workload.

    Raises
    ------
    InputError
        If layers that predict further ahead are wanted of one.
    """
    base = _base(model)
    if base != model and Path(base).exists() and _is_captured(base):
        raise InputError(
            f"{base} is a captured workload, to which +mtp and +images can add no layers; "
            "it stands behind a name, a shape or a configuration."
        )
    is_path = model.endswith(_FILE) and not model.startswith(_HUGGING_FACE)
    return is_path and not is_huggingface_config(Path(model))


def _from_file(
    model: str,
    asked: _Combinations,
    sequence: int | None,
    attention: AttentionKind | None,
    trained: Trained | None,
) -> Workload:
    """Read a captured workload and choose the variants that were asked for.

    Raises
    ------
    InputError
        If it was captured otherwise; what it is cannot be changed any more.
    """
    if trained is not None:
        raise InputError(
            f"{model} is captured as it is trained; capture the model again with what is to be "
            f"frozen ({trained.words})."
        )
    if attention is not None:
        raise InputError(
            f"{model} is captured with its own attention; it cannot be changed to {attention}."
        )
    workload = read_workload(Path(model))
    if sequence not in (None, workload.sequence):
        raise InputError(
            f"{model} was captured with a sequence of {workload.sequence}; "
            f"it cannot be changed to {sequence}."
        )
    return replace(workload, variants=select_variants(workload, *asked))


@functools.cache
def _models() -> dict[str, TransformerConfig]:
    """Read the shapes that come with the package."""
    return {
        name: from_builtins(fields, TransformerConfig, f"model {name}")
        for name, fields in data_table("workload", "models.toml").items()
    }


def _refuse_unstated_sequence(config: TransformerConfig, model: str, sequence: int | None) -> None:
    """Refuse the long sequence of a configuration, which is a limit, where nobody asks for it."""
    asked_for = sequence is not None or config.patch_size > 0 or not _is_file(model)
    if not asked_for and config.sequence > LONGEST_UNSTATED_SEQUENCE:
        raise InputError(
            f"{model} allows up to {config.sequence} tokens per sample, which is rarely what a "
            f"model is trained on; above {LONGEST_UNSTATED_SEQUENCE} say how many, for example "
            "--sequence 4096, or sequence = 4096 in a study file or in Python."
        )


def _share_of_tokens(config: TransformerConfig, model: str, devices: int) -> TransformerConfig:
    """Return the shape of what one of the devices that share every sequence has.

    Raises
    ------
    InputError
        If the model, or its attention, cannot be shared out so.
    """
    check_size("context_parallel", devices, MOST_SAMPLES)
    if devices == 1:
        return config
    tokens, rest = divmod(config.sequence, devices)
    if rest:
        raise InputError(
            f"context_parallel is {devices}, but it must divide the {config.sequence} tokens per "
            f"sample of {model}."
        )
    joint = config.diffusion and not config.diffusion.crosses
    two_stacks = config.encoder_layers or config.encoder or config.images or joint
    if config.attention != "flash" or two_stacks or config.patch_size:
        raise InputError(
            f"context_parallel is {devices}, but it must be 1 for {model}: sequences are shared "
            "only by fused self-attention on text; --attention flash changes the attention."
        )
    if config.state_space or config.delta_net:
        raise InputError(
            f"context_parallel is {devices}, but it must be 1 for {model}: a state-space mixer or "
            "a delta net needs all tokens of a sequence on one device."
        )
    if config.indexer or config.compressed:
        raise InputError(
            f"context_parallel is {devices}, but it must be 1 for {model}, whose queries attend to "
            "keys that an indexer chooses, or to compressed ones."
        )
    if config.chunk_tokens:
        raise InputError(
            f"context_parallel is {devices}, but it must be 1 for {model}, whose attention is "
            f"within chunks of {config.chunk_tokens} tokens."
        )
    window = max((each for each in config.block_windows if each), default=0)
    if window >= tokens:
        raise InputError(
            f"context_parallel is {devices}, which leaves {tokens} tokens of a sample on a device, "
            f"but {model} has a window of {window}, which must be shorter."
        )
    return replace(config, sequence=tokens, position_rows=config.position_table_rows)


def _splits(
    tensor_parallel: Sequence[int], expert_tensor_parallel: Sequence[int], sequence_parallel: bool
) -> list[tuple[int, int]]:
    """Return tensor degrees with the devices over which each expert is split, as captured.

    Raises
    ------
    InputError
        If there is none: the devices of a group that does not split the sequence have the same
        tokens, of which none could send its own.
    """
    for of_expert in expert_tensor_parallel:
        if of_expert != 0:
            check_size("expert_tensor_parallel", of_expert, MOST_SAMPLES)
    pairs = {
        (tensor, expert_tensor_of(tensor, of_expert))
        for tensor in tensor_parallel
        for of_expert in expert_tensor_parallel
        if sequence_parallel or tensor == 1 or of_expert in (0, tensor)
    }
    if not pairs:
        stated = ", ".join(map(str, sorted(set(expert_tensor_parallel))))
        degrees = ", ".join(map(str, sorted(set(tensor_parallel))))
        raise InputError(
            f"expert_tensor_parallel is {stated} and the tensor degree {degrees}, but without "
            "sequence_parallel the devices of a tensor-parallel group have the same tokens; both "
            "must be the same, or sequence_parallel on."
        )
    return sorted(pairs)


def _as_shared(cached: CachedVariant, devices: int, capacity: float) -> CachedVariant:
    """Say of a capture how many devices share its sequences, and how many rows experts have."""
    if devices == 1 and capacity == 0.0:
        return cached
    shared = UNSET if devices == 1 else devices
    variant = replace(cached.variant, context_parallel=shared, expert_capacity=capacity or UNSET)
    return replace(cached, variant=variant)


def _refuse_impossible(
    config: TransformerConfig,
    model: str,
    tensor_parallel: Sequence[int],
    microbatch: Sequence[int],
    sequence_parallel: bool,
) -> None:
    """Refuse tensor degrees and microbatches that cannot be captured, before any capture."""
    for tensor_degree in tensor_parallel:
        config.require_tensor_degree(
            tensor_degree, sequence_parallel=sequence_parallel, model=model
        )
    for samples in microbatch:
        if not 1 <= samples <= _LARGEST_MICROBATCH:
            raise InputError(
                f"microbatch is {samples}, but it must be between 1 and {_LARGEST_MICROBATCH}."
            )
        if samples * config.heads * config.sequence**2 >= 2**60:
            raise InputError(
                f"{model} at microbatch {samples} and sequence {config.sequence} has attention "
                "scores too large to address; choose a smaller microbatch or sequence."
            )


def _capture(key: CaptureKey) -> CachedVariant:
    """Capture a variant and write it to the cache."""
    cached = capture_key(key)
    write_variant(cached)
    return cached


def capture_key(key: CaptureKey) -> CachedVariant:
    """Capture a variant now; only this function imports torch."""
    from phaze_opt.workload.capture.transformer import capture_transformer, count_parameters

    variant = capture_transformer(
        key.config,
        tensor_parallel=key.tensor_parallel,
        microbatch=key.microbatch,
        sequence_parallel=key.sequence_parallel,
        expert_tensor=key.expert_tensor or 0,
    )
    parameters = count_parameters(key.config)
    active = count_parameters(key.config, active=True) if key.config.experts else UNSET
    return CachedVariant(key, parameters, variant, active)
