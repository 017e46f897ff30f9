"""Sentences about an explanation: what it is, what binds it, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phaze_opt.report.words import RESOURCE_WORDS, placement_words
from phaze_opt.units import format_bytes, format_seconds

_GAIN_WORDS = {
    "compute": "PE array rate +10 %",
    "lanes": "vector lane rate +10 %",
    "clock": "clock +10 % (arrays, lanes, GLB)",
    "glb": "GLB bandwidth +10 %",
    "hbm": "HBM bandwidth +10 %",
    "hbm_size": "HBM size +10 %",
    "network_latency": "network latency −10 %",
    "overhead": "time per operator −10 %",
}
_KIND_WORDS = {
    "tensor_collectives": "tensor-parallel collectives",
    "transfer": "pipeline transfers",
    "stash": "stashes",
    "transient": "working set",
    "optimizer": "optimizer",
}
_LEAST_GAIN = 0.0005
_LEAST_SHARE = 0.05


def gain_words(resource: str) -> str:
    """Name the change that a gain is of."""
    if resource.startswith("link_"):
        return f"network level {resource.removeprefix('link_')} bandwidth +10 %"
    return _GAIN_WORDS[resource]


def kind_words(kind: str) -> str:
    """Name a part of the time or the memory."""
    return _KIND_WORDS.get(kind, kind.replace("_", " "))


def stage_words(stage: Mapping[str, Any]) -> str:
    """Name the stage with the largest load."""
    if stage["stages"] == 1:
        return "the only stage"
    return f"the busiest stage ({stage['stage']} of 0 to {stage['stages'] - 1})"


def heavy_layers(layers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the distinct layers that matter in the whole model, the one with most time first."""

    def seconds(layer: Mapping[str, Any]) -> float:
        each: float = layer["forward_s"] + layer["backward_s"] + layer["recompute_s"]
        return each * int(layer["count"])

    least_s = _LEAST_SHARE * sum(seconds(layer) for layer in layers)
    return sorted((layer for layer in layers if seconds(layer) >= least_s), key=seconds)[::-1]


def explanation_sentences(record: Mapping[str, Any]) -> list[str]:
    """Say in a few sentences why a point is as fast as it is, or why it does not fit.

    Parameters
    ----------
    record
        What ``explain --json`` prints.
    """
    if not record["feasible"]:
        return [
            f"It does not fit: {record['reason']}",
            *_shortage_sentences(record),
            *_search_sentences(record["searched_tensor"]),
            *_fix_sentences(record["fixes"]),
        ]
    speed, time_s = record["throughput_samples_per_s"], record["time_per_batch_s"]
    return [
        f"It trains {speed:,.1f} samples/s, {format_seconds(time_s)} per batch (MFU "
        f"{record['mfu']:.1%}), as {placement_words(record['placement'])}.",
        _time_sentence(record["stage_time"], time_s),
        _layer_sentence(heavy_layers(record["layers"])[0]),
        _gain_sentence(record["gains"]),
        _memory_sentence(record["memory"]),
    ]


def _shortage_sentences(record: Mapping[str, Any]) -> list[str]:
    """Say what the placement that needs least memory is short of, where the reason does not."""
    memory = record["memory"]
    if memory is None or format_bytes(memory["total_bytes"]) in record["reason"]:
        return []
    return [
        f"The placement that needs least memory takes {format_bytes(memory['total_bytes'])} per "
        f"device, {format_bytes(memory['excess_bytes'])} too much."
    ]


def _search_sentences(widths: Sequence[int]) -> list[str]:
    """Say which degrees were searched in vain."""
    if not widths:
        return []
    listed = _listed([str(width) for width in widths])
    noun = "width" if len(widths) == 1 else "widths"
    return [f"Every pipeline depth at the tensor-parallel {noun} {listed} was tried."]


def _time_sentence(stage: Mapping[str, Any], time_s: float) -> str:
    """Say where the time goes."""
    parts = sorted(stage["parts_s"].items(), key=lambda item: -item[1])
    large = [(kind, seconds) for kind, seconds in parts if seconds >= _LEAST_SHARE * time_s]
    words = _listed([f"{kind_words(kind)} {seconds / time_s:.0%}" for kind, seconds in large])
    return f"On {stage_words(stage)} the time goes to {words}."


def _layer_sentence(layer: Mapping[str, Any]) -> str:
    """Say what binds the layer that takes most time."""
    clauses = []
    for name in ("forward", "backward"):
        binding = layer[f"{name}_binding"]
        if binding["makespan_s"] <= 0.0:
            continue
        shares = sorted(binding["share"].items(), key=lambda item: -item[1])
        words = [
            f"{RESOURCE_WORDS[resource]} {share:.0%}"
            for resource, share in shares[:3]
            if share >= _LEAST_SHARE
        ]
        clause = f"{name} ({format_seconds(binding['makespan_s'])}) by {_listed(words)}"
        idle = binding["schedule_s"] / binding["makespan_s"]
        if idle >= _LEAST_SHARE:
            clause += f", {idle:.0%} with idle cores"
        clauses.append(clause)
    return f"The layer that counts is {layer['name']} (×{layer['count']}), bound " + (
        f"{'; '.join(clauses)}."
    )


def _gain_sentence(gains: Sequence[Mapping[str, Any]]) -> str:
    """Say what more of each resource brings."""
    some = [gain for gain in gains if gain["throughput_gain"] >= _LEAST_GAIN]
    if not some:
        return "A tenth more of any single resource brings next to nothing."
    words = [f"{g['throughput_gain']:+.1%} from {gain_words(g['resource'])}" for g in some[:3]]
    none = [gain_words(gain["resource"]) for gain in gains if gain["throughput_gain"] == 0.0]
    rest = f"; {_listed(none)} would change nothing" if none else ""
    return f"Throughput would gain {_listed(words)}{rest}."


def _memory_sentence(memory: Mapping[str, Any]) -> str:
    """Say how full the memory is, and of what."""
    kinds = sorted(memory["bytes_by_kind"].items(), key=lambda item: -item[1])
    words = _listed([f"{kind_words(kind)} {format_bytes(size)}" for kind, size in kinds[:2]])
    share = memory["total_bytes"] / memory["usable_bytes"]
    return (
        f"The fullest stage holds {format_bytes(memory['total_bytes'])} per device, {share:.1%} of "
        f"the usable {format_bytes(memory['usable_bytes'])}; most is {words}."
    )


def _fix_sentences(fixes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what makes it fit."""
    fitting = [fix for fix in fixes if fix["feasible"]]
    runs = [fix for fix in fitting if "hbm_size" not in fix["kinds"]]
    sentences = []
    if runs:
        best = runs[0]
        single = any(len(fix["kinds"]) == 1 for fix in runs)
        alone = "" if single else ", as no single change does"
        sentences.append(
            f"The fastest change of the training run that makes it fit is "
            f"{' '.join(best['options'])}{alone}: {best['throughput_samples_per_s']:,.1f} "
            f"samples/s, {format_seconds(best['time_per_batch_s'])} per batch at "
            f"{best['placement']}."
        )
    else:
        sentences.append("No change of the training run that was tried makes it fit.")
    larger = [fix for fix in fitting if "hbm_size" in fix["kinds"]]
    if larger:
        gib = larger[0]["options"][0].rpartition("=")[2]
        sentences.append(
            f"As it is, it would need {gib} GiB of HBM, and then train "
            f"{larger[0]['throughput_samples_per_s']:,.1f} samples/s."
        )
    return sentences


def _listed(words: Sequence[str]) -> str:
    """Join words as a person lists them."""
    if len(words) < 2:
        return "".join(words) or "nothing of size"
    return f"{', '.join(words[:-1])} and {words[-1]}"
