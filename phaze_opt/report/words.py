"""Sentences about an evaluation, used on the terminal and in the dashboard alike."""

from __future__ import annotations

from phaze_opt.evaluation import Evaluation
from phaze_opt.placement.placement_problem import Placement

RESOURCE_WORDS = {
    "compute": "tensor cores",
    "lanes": "vector lanes",
    "glb": "GLB bandwidth",
    "hbm": "HBM bandwidth",
    "link": "network",
    "overhead": "time between operators",
}
_KIND_WORDS = {
    "tensor_collectives": "tensor-parallel collectives",
    "transfer": "pipeline transfers",
    "stash": "stashes",
    "transient": "working set",
}
_LEAST_SHARE = 0.005


def placement_words(placement: Placement) -> str:
    """Describe the degrees of a placement."""
    pipeline, data, tensor = placement.pipeline, placement.data, placement.tensor
    return (
        f"{_count(pipeline, 'stage')} × {_count(data, 'replica')} × tensor-parallel {tensor} "
        f"({placement.degrees_text})"
    )


def microbatch_words(placement: Placement) -> str:
    """Count the microbatches of a placement."""
    return f"{placement.microbatches:,} per replica and batch"


def device_words(placement: Placement, unused_devices: int) -> str:
    """Count the devices that run a stage, and those that are left idle."""
    used = f"{placement.devices:,} used"
    return f"{used}, {unused_devices:,} idle" if unused_devices else used


def padding_words(padding_samples: int) -> str:
    """Say that more samples are trained than the global batch has; see `Evaluation`."""
    return (
        f"{_count(padding_samples, 'sample')} per batch beyond the global batch, which "
        "microbatch × replicas does not divide; throughput does not count "
        f"{'it' if padding_samples == 1 else 'them'}"
    )


def power_words(evaluation: Evaluation) -> str:
    """Say how much power a device takes."""
    return (
        f"{evaluation.power_w_per_device:.4g} W per device on average, and "
        f"{evaluation.static_power_w_per_device:.3g} W of leakage"
    )


def binding_words(evaluation: Evaluation) -> str:
    """Say which resources bind the operators, and in which share of their time."""
    parts = [
        f"{RESOURCE_WORDS.get(name, name)} {share:.0%}"
        for name, share in evaluation.bound_by_share.items()
        if share >= _LEAST_SHARE
    ]
    return ", ".join(parts)


def time_words(evaluation: Evaluation) -> str:
    """Say where the time of a batch goes, largest part first; nothing where it is infeasible."""
    whole_s = evaluation.time_per_batch_s or 0.0
    parts = sorted(evaluation.time_breakdown_s.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{kind_words(kind)} {seconds / whole_s:.1%}"
        for kind, seconds in parts
        if seconds >= _LEAST_SHARE * whole_s
    )


def kind_words(kind: str) -> str:
    """Name a part of the time of a batch, or a kind of memory."""
    return _KIND_WORDS.get(kind, kind.replace("_", " "))


def share_words(share: float | None) -> str:
    """Write a share; a dash where there is nothing to share."""
    return "–" if share is None else f"{share:.1%}"


def _count(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
