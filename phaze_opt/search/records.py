"""Evaluations as plain data, and what is believed of those that come back from a database."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from phaze_opt.evaluation import Evaluation

Record = dict[str, Any]
"""An evaluation as plain data: the JSON of ``evaluate``."""


@dataclass(frozen=True)
class _Total:
    """What the JSON adds to the memory of a stage."""

    total: float


@dataclass(frozen=True)
class _StageExtra:
    """What the JSON adds to a stage."""

    memory_bytes: _Total


@dataclass(frozen=True)
class _PlacementExtra:
    """What the JSON adds to a placement."""

    stages: list[_StageExtra]


@dataclass(frozen=True)
class _Extra:
    """What the JSON adds to an evaluation: values that follow from its fields."""

    placement: _PlacementExtra | None
    bound_by_share: dict[str, float]
    energy_j_per_batch: float


def write_record(record: Record) -> str:
    """Write a record as strict JSON."""
    return json.dumps(record, allow_nan=False, separators=(",", ":"))


def read_record(body: object) -> Record | None:
    """Read a record; whatever is not the JSON of an evaluation counts as absent."""
    if not isinstance(body, str):
        return None
    try:
        record = json.loads(body, parse_float=_finite, parse_constant=_finite)
        evaluation = msgspec.convert(record, Evaluation)
        msgspec.convert(record, _Extra)
    except (ValueError, RecursionError):
        return None
    if evaluation.feasible:
        whole = evaluation.placement is not None and evaluation.throughput_samples_per_s > 0
        whole = whole and (evaluation.time_per_batch_s or 0.0) > 0
    else:
        whole = evaluation.reason is not None and evaluation.throughput_samples_per_s == 0
    return record if whole else None


def _finite(text: str) -> float:
    """Read a number; NaN and infinity, which JSON does not have, are refused."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number
