"""Evaluations as plain data: what ``evaluate --json`` prints, and what the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.evaluation_record import Evaluation

_BILLED = (
    *("cost_usd_per_million_samples", "tco_usd", "carbon_kg_per_million_samples", "carbon_kg"),
    "wall_power_w_per_device",
)
"""Figures of a bill that stand beside the others of an evaluation, each with its range."""


def evaluation_to_json_dict(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation as the plain data that ``evaluate --json`` prints."""
    plain: dict[str, Any] = to_builtins(evaluation)
    if evaluation.placement is not None:
        for stage, source in zip(
            plain["placement"]["stages"], evaluation.placement.stages, strict=True
        ):
            stage["memory_bytes"]["total"] = source.memory_bytes.total
    for name in ("degraded", "accelerators"):
        if plain[name] is None:
            del plain[name]
    if evaluation.bill is not None and evaluation.bill.network is None:
        del plain["bill"]["network"]
    plain["bound_by_share"] = evaluation.bound_by_share
    plain["energy_j_per_batch"] = evaluation.energy_j_per_batch
    for figure in _BILLED:
        ranged = None if evaluation.bill is None else getattr(evaluation.bill, figure)
        plain[figure] = None if ranged is None else ranged.central
        plain[f"{figure}_range"] = None if ranged is None else [ranged.low, ranged.high]
    return plain


def evaluation_from_json_dict(plain: Mapping[str, Any]) -> Evaluation:
    """Build an evaluation from the plain data that `evaluation_to_json_dict` returns.

    Values that follow from the fields (``bound_by_share``, ``energy_j_per_batch``, the figures of
    the bill and the total memory of a stage) are not read, but computed again.

    Raises
    ------
    InputError
        If the data is not that of an evaluation, or contradicts itself.
    """
    derived = {"bound_by_share", "energy_j_per_batch", *_BILLED}
    derived |= {f"{figure}_range" for figure in _BILLED}
    own = {key: value for key, value in plain.items() if key not in derived}
    if not own.get("feasible"):
        # An older program stored none.
        own |= {"hfu": own.get("hfu") or 0.0, "mfu_causal": own.get("mfu_causal") or 0.0}
    placement = own.get("placement")
    if isinstance(placement, Mapping) and isinstance(placement.get("stages"), list | tuple):
        own["placement"] = {**placement, "stages": [*map(_without_total, placement["stages"])]}
    evaluation = from_builtins(own, Evaluation, "evaluation")
    if evaluation.feasible:
        whole = evaluation.placement is not None and evaluation.throughput_samples_per_s > 0.0
        whole = whole and (evaluation.time_per_batch_s or 0.0) > 0.0
    else:
        whole = evaluation.reason is not None and evaluation.throughput_samples_per_s == 0.0
    if not whole:
        raise InputError("The evaluation is not valid: its fields contradict each other.")
    return evaluation


def _without_total(stage: object) -> object:
    """Return the plain data of a stage without the total of its memory."""
    if not isinstance(stage, Mapping) or not isinstance(stage.get("memory_bytes"), Mapping):
        return stage
    memory = {kind: size for kind, size in stage["memory_bytes"].items() if kind != "total"}
    return {**stage, "memory_bytes": memory}
