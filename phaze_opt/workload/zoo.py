"""Workloads by name: the models of the paper, any GPT or Llama shape, and captured files."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phaze_opt.codec import from_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.cache import CachedVariant, CaptureKey, read_variant, write_variant
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Workload


def load_workload(
    model: str,
    *,
    tensor_parallel: Sequence[int] = (1,),
    microbatch: Sequence[int] = (1,),
    sequence_parallel: bool = False,
    sequence: int | None = None,
) -> Workload:
    """Return a model captured at some widths and microbatches, from the cache where possible.

    Parameters
    ----------
    model
        A name of `model_names`.
    tensor_parallel, microbatch
        What to capture: every combination.
    sequence_parallel
        Whether tensor-parallel groups also split the sequence. Width 1 is the same with and
        without.
    sequence
        Tokens per sample, instead of the model's own. A learned position table grows with it.

    Raises
    ------
    InputError
        If the model is unknown, a width does not divide it, or a number is not positive.
    """
    config = model_config(model, sequence)
    _check(config, model, tensor_parallel, microbatch, sequence_parallel)
    keys = [
        CaptureKey(config, width, samples, sequence_parallel and width > 1)
        for width in sorted(set(tensor_parallel))
        for samples in sorted(set(microbatch))
    ]
    cached = [read_variant(key) or _capture(key) for key in keys]
    return Workload(
        model=model,
        sequence=config.sequence,
        parameters=cached[0].parameters,
        variants=tuple(one.variant for one in cached),
    )


def model_names() -> tuple[str, ...]:
    """Return the names of the models that come with the package."""
    return tuple(_models())


def model_config(model: str, sequence: int | None = None) -> TransformerConfig:
    """Return the shape of a named model, with another sequence length if one is given."""
    models = _models()
    if model not in models:
        raise unknown_name("model", model, models)
    config = models[model]
    return config if sequence is None else replace(config, sequence=sequence)


def widths(model: str) -> tuple[int, ...]:
    """Return the tensor-parallel widths among 1, 2, 4 and 8 that divide the model."""
    return model_config(model).widths()


@functools.cache
def _models() -> dict[str, TransformerConfig]:
    """Read the shapes that come with the package."""
    text = (Path(__file__).parent / "data" / "models.toml").read_text(encoding="utf-8")
    return {
        name: from_builtins(fields, TransformerConfig, f"model {name}")
        for name, fields in tomllib.loads(text).items()
    }


def _check(
    config: TransformerConfig,
    model: str,
    tensor_parallel: Sequence[int],
    microbatch: Sequence[int],
    sequence_parallel: bool,
) -> None:
    """Refuse what cannot be captured before anything is."""
    if not tensor_parallel or not microbatch:
        raise InputError("At least one tensor-parallel width and one microbatch are needed.")
    for width in tensor_parallel:
        config.require_width(width, sequence_parallel=sequence_parallel, model=model)
    for samples in microbatch:
        if samples < 1:
            raise InputError(f"microbatch is {samples}, but it must be at least 1.")


def _capture(key: CaptureKey) -> CachedVariant:
    """Capture a variant and keep it; only here is torch imported."""
    from phaze_opt.workload.models import capture_transformer, count_parameters

    variant = capture_transformer(
        key.config,
        tensor_parallel=key.tensor_parallel,
        microbatch=key.microbatch,
        sequence_parallel=key.sequence_parallel,
    )
    cached = CachedVariant(key, count_parameters(key.config), variant)
    write_variant(cached)
    return cached
