"""Time by part and memory by kind."""

from __future__ import annotations

from typing import Any

import pytest

from phaze_opt.explanation.explain import explain_point
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Placing, Point
from phaze_opt.training import Training
from tests.explanation.cases import load_tiny, tiny

CASES: list[tuple[Placing, dict[str, Any]]] = [
    ("solve", {}),
    ((2, 2, 2), {"recompute": "selective"}),
    ((2, 2, 4), {"recompute": "full", "zero": 3}),
    ((2, 2, 1), {"pipeline_schedule": "gpipe"}),
    ((2, 2, 2), {"pipeline_schedule": "interleaved", "interleave": 2}),
]


@pytest.mark.parametrize(("placement", "options"), CASES)
def test_parts_add_up(placement: Placing, options: dict[str, Any]) -> None:
    """Parts of the time sum to the time per batch, kinds of memory to the fullest stage's total."""
    point = Point(
        tiny(microbatch=1),
        load_accelerator("tpuv4-lanes"),
        load_cluster("dgx-a100", 16),
        Training(16, 1, optimizer="adam", **options),
        placement,
    )
    explanation = explain_point(point, load_tiny, {})
    evaluation, stage, memory = explanation.evaluation, explanation.stage, explanation.memory
    assert stage is not None and memory is not None and evaluation.placement is not None
    assert sum(stage.parts_s.values()) == pytest.approx(evaluation.time_per_batch_s, rel=1e-9)
    assert all(seconds >= -1e-15 for seconds in stage.parts_s.values())
    own = evaluation.placement.stages[stage.stage]
    assert own.load_s == stage.load_s == max(s.load_s for s in evaluation.placement.stages)
    tensor = evaluation.placement.tensor
    assert (stage.parts_s["tensor_collectives"] > 0.0) == (tensor > 1)
    assert sum(memory.bytes_by_kind.values()) == memory.total_bytes
    totals = [s.memory_bytes.total for s in evaluation.placement.stages]
    assert memory.total_bytes == max(totals)
    assert memory.stage == totals.index(max(totals))
    assert memory.excess_bytes <= 0.0
    assert memory.usable_bytes == point.accelerator.usable_memory_bytes
