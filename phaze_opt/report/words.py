"""Sentences about an evaluation and a study, the same on the terminal and in the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phaze_opt.search.results import BestDesign, StudySummary
from phaze_opt.search.space import DesignPoint
from phaze_opt.units import format_seconds

RESOURCE_WORDS = {
    "compute": "tensor cores",
    "lanes": "vector lanes",
    "glb": "GLB bandwidth",
    "hbm": "HBM bandwidth",
    "link": "network",
    "overhead": "time between operators",
}
_LEAST_SHARE = 0.005


def accelerator_words(point: DesignPoint) -> str:
    """Describe the chip of a point."""
    return (
        f"{point.num_tc} TC of {point.pe_x}×{point.pe_y}, "
        f"{point.num_vc} VC of {point.pe_vc} lanes, "
        f"GLB {point.glb_mib} MiB, HBM {point.hbm_gib} GiB"
    )


def training_words(point: DesignPoint) -> str:
    """Describe the training options of a point."""
    return f"microbatch {point.microbatch}, recompute {point.recompute}"


def placement_words(placement: Mapping[str, Any] | None) -> str:
    """Describe a placement."""
    if placement is None:
        return "none fits"
    pipeline, data, tensor = (placement[key] for key in ("pipeline", "data", "tensor"))
    stages, microbatches = (
        _count(pipeline, "stage"),
        _count(placement["microbatches"], "microbatch"),
    )
    return (
        f"{stages} × {data} replicas × tensor-parallel {tensor} ({pipeline}x{data}x{tensor}), "
        f"{microbatches} per replica and batch"
    )


def _count(number: int, noun: str) -> str:
    """Write a number of things."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def binding_words(record: Mapping[str, Any]) -> str:
    """Say which resources bind the operators, and in which share of their time."""
    shares = record.get("bound_by_share", {})
    parts = [
        f"{RESOURCE_WORDS.get(name, name)} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= _LEAST_SHARE
    ]
    return ", ".join(parts) or "unknown"


def time_words(record: Mapping[str, Any]) -> str:
    """Say where the time of a batch goes, largest part first."""
    whole = record.get("time_per_batch_s")
    if not whole:
        return "no time"
    parts = sorted(record.get("time_breakdown_s", {}).items(), key=lambda item: -item[1])
    return ", ".join(
        f"{kind.replace('_', ' ')} {seconds / whole:.1%}"
        for kind, seconds in parts
        if seconds >= _LEAST_SHARE * whole
    )


def ratio_words(best: BestDesign) -> list[str]:
    """Compare a design with every baseline, one line each."""
    lines = []
    for baseline in best.baselines:
        ratio = best.ratio(baseline)
        if baseline.point is None or ratio is None:
            lines.append(f"{baseline.name} fits under no training option")
            continue
        beyond = "" if baseline.within_area else ", itself above the area limit"
        lines.append(
            f"{ratio:.3f} × {baseline.name} ({baseline.throughput_samples_per_s:,.0f} samples/s at "
            f"{training_words(baseline.point)}{beyond})"
        )
    return lines


def trial_words(summary: StudySummary) -> str:
    """Count the trials."""
    trials = summary.trials
    limits = sorted(summary.why_infeasible.items())
    why = ", ".join(f"{count} by {limit}" for limit, count in limits)
    of_all = f" of {trials['complete'] + summary.left}" if summary.left else ""
    text = f"{trials['complete']}{of_all} complete, of which {trials['infeasible']} infeasible"
    text += f" ({why})" if why else ""
    for kind in ("failed", "running"):
        text += f", {trials[kind]} {kind}" if trials[kind] else ""
    return text


def effort_words(summary: StudySummary) -> str:
    """Say how long the search took, and how much of it was new."""
    if summary.rate_per_s is None:
        return "no trial yet"
    text = f"{format_seconds(summary.busy_s)} in trials, {summary.rate_per_s:.3g} trials/s"
    if summary.left_s is not None:
        text += f", about {format_seconds(summary.left_s)} left"
    return text


def proof_words(summary: StudySummary) -> str:
    """Say which share of the schedules is proven optimal, and which at almost no cost."""
    text = f"{share_words(summary.proven_schedule_share)} of the schedules"
    quick = summary.quickly_proven_schedule_share
    if quick is None:
        return text
    return f"{text}; {share_words(quick)} without search or in under 20 ms"


def share_words(share: float | None) -> str:
    """Write a share; a dash where there is nothing to share."""
    return "–" if share is None else f"{share:.1%}"
