"""The differences between two studies: in their specs, and in their best designs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaze_opt.codec import to_builtins
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.study import Study


@dataclass(frozen=True)
class Difference:
    """A key with different values in two studies; ``None`` if a study does not have the key."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class StudyDifference:
    """The differences between two studies.

    Attributes
    ----------
    spec
        Dotted keys of the frozen specs, in which names are resolved to numbers.
    best
        Values, parameters, area and placement of the best designs.
    """

    names: tuple[str, str]
    spec: tuple[Difference, ...]
    best: tuple[Difference, ...]


def compare_studies(first: Study, second: Study) -> StudyDifference:
    """Return the differences between two studies, key by key."""
    specs = [_flat(to_builtins(study.resolved)) for study in (first, second)]
    for spec in specs:
        spec.pop("spec.name")
    designs = [_best(study.best()) for study in (first, second)]
    return StudyDifference(
        (first.name, second.name),
        _differences(specs[0], specs[1]),
        _differences(designs[0], designs[1]),
    )


def _best(best: BestDesign | None) -> dict[str, Any]:
    """Return the cells of a best design."""
    if best is None:
        return {}
    values = dict(zip(best.spec.metric_names, best.metrics.values, strict=True))
    cells: dict[str, Any] = {**values, **best.params, "chip_area_mm2": best.metrics.area_mm2}
    for metrics, evaluation in zip(best.metrics.runs, best.evaluations, strict=True):
        prefix = f"{metrics.workload}." if len(best.metrics.runs) > 1 else ""
        if evaluation is not None and evaluation.placement is not None:
            cells[f"{prefix}placement"] = evaluation.placement.degrees_text
            cells[f"{prefix}mfu"] = evaluation.mfu
    return cells


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the keys whose values differ, in the order of the first."""
    return tuple(
        Difference(key, first.get(key), second.get(key))
        for key in dict.fromkeys((*first, *second))
        if first.get(key) != second.get(key)
    )


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the keys of nested tables with dots; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
