"""What would make a point fit: every suggestion really does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.explanation.fixes import Fix, fixes, least_memory
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.point import Placing, Point
from phaze_opt.training import Training
from phaze_opt.units import GIB
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload
from tests.explanation.cases import crowded, evaluated, load_tiny, network, tiny


def with_options(point: Point, options: tuple[str, ...]) -> Point:
    """Read the options of a fix back into a point."""
    fields: dict[str, Any] = {}
    for option in options:
        name, _, value = option.removeprefix("--").replace("-", "_").partition(" ")
        if name == "placement":
            pipeline, data, tensor = map(int, value.split("x")) if "x" in value else (0, 0, 0)
            degrees: Placing = (pipeline, data, tensor) if pipeline else "solve"
            point = replace(point, placement=degrees)
        elif name == "set":
            chip = replace(point.accelerator, hbm_bytes=int(value.partition("=")[2]) * GIB)
            point = replace(point, accelerator=chip)
        elif name == "sequence_parallel":
            fields[name] = True
        else:
            kind = type(getattr(point.training, name))
            fields[name] = kind(value)
    training = replace(point.training, **fields)
    workload = tiny(
        microbatch=training.microbatch,
        sequence_parallel=training.sequence_parallel,
        tensor=point.placement[2] if isinstance(point.placement, tuple) else None,
    )
    return replace(point, training=training, workload=workload)


# Memory is chosen so that some single changes fit and others do not; pairs; and all at once.
CROWDED = [
    crowded(2_000_000, (1, 4, 1)),
    crowded(2_000_000, (2, 2, 2), zero=1),
    crowded(700_000, "solve", microbatch=8),
    crowded(400_000, "solve", microbatch=4),
    crowded(3_000_000, (2, 2, 1), pipeline_schedule="interleaved", interleave=2),
    crowded(2_000_000, (2, 2, 1), pipeline_schedule="gpipe"),
    # With a split backward, stages of ZeRO above 1 go with another schedule only.
    crowded(700_000, (2, 2, 1), pipeline_schedule="zb-h1"),
]


@pytest.mark.parametrize("point", CROWDED)
def test_every_suggestion_is_what_an_evaluation_says(point: Point) -> None:
    """The options of each fix give its time, or do not fit, by as much as it says."""
    assert not evaluated(point).feasible
    proposed = fixes(point, evaluated(point), load_tiny, {})
    assert proposed
    for fix in proposed:
        changed = with_options(point, fix.options)
        result = evaluated(changed)
        assert result.feasible == fix.feasible
        assert result.time_per_batch_s == fix.time_per_batch_s
        assert result.throughput_samples_per_s == fix.throughput_samples_per_s
        assert result.reason == fix.reason
        if fix.excess_bytes is not None:
            assert fix.excess_bytes > 0.0
            excess = fix.excess_bytes / changed.accelerator.usable_memory_bytes
            # The sentence of an evaluation may be about one layer that is too large already.
            assert result.violation <= excess * (1 + 1e-12)
            more = int(changed.accelerator.hbm_bytes * (1.0 + excess) * (1 + 1e-12)) + 1
            enough = replace(changed.accelerator, hbm_bytes=more)
            assert evaluated(replace(changed, accelerator=enough)).feasible
    ranks = [(not fix.feasible, fix.time_per_batch_s or 0.0) for fix in proposed]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("point", CROWDED)
def test_the_least_memory_fits_and_less_does_not(point: Point) -> None:
    """One GiB less than the suggested memory is too little; the suggestion is never beaten."""
    larger = least_memory(point, evaluated(point).misfit, {})
    assert larger is not None
    assert evaluated(larger).feasible
    gib = larger.accelerator.hbm_bytes // GIB
    if gib > 1:
        less = replace(larger.accelerator, hbm_bytes=(gib - 1) * GIB)
        assert not evaluated(replace(larger, accelerator=less)).feasible


def test_least_memory_of_a_large_model() -> None:
    """For a model of many GiB the least memory is found to the GiB, given degrees or not."""
    model = "gpt:layers=8,hidden=4096,heads=32,sequence=1024,vocab=50304"
    workload = load_workload(model, tensor_parallel=(1,), microbatch=(1,))
    chip = replace(load_accelerator("tpuv4-lanes"), hbm_bytes=GIB)
    for placement in ("solve", (2, 1, 1), (4, 1, 1)):
        point = Point(workload, chip, network(4), Training(8, 1, optimizer="adam"), placement)
        larger = least_memory(point, evaluated(point).misfit, {})
        assert larger is not None
        gib = larger.accelerator.hbm_bytes // GIB
        assert gib > 4
        assert evaluated(larger).feasible
        less = replace(larger.accelerator, hbm_bytes=(gib - 1) * GIB)
        assert not evaluated(replace(larger, accelerator=less)).feasible


def kinds(proposed: tuple[Fix, ...]) -> set[tuple[str, ...]]:
    """Return the kinds of what was tried."""
    return {fix.kinds for fix in proposed}


def test_combinations_are_tried_where_single_changes_are_not_enough() -> None:
    """Pairs of what helps but is not enough, all pairs where nothing is, all kinds at once last."""
    easy, hard, harder = (
        fixes(CROWDED[index], evaluated(CROWDED[index]), load_tiny, {}) for index in (0, 2, 3)
    )
    alone = {fix.options: fix for fix in easy if len(fix.kinds) == 1}
    assert any(fix.feasible for fix in alone.values())
    enough = {fix.options[0] for fix in alone.values() if fix.feasible}
    for fix in easy:
        assert len(fix.kinds) == 1 or not set(fix.options) & enough
    assert max(len(each) for each in kinds(easy)) == 2
    assert any(fix.feasible and len(fix.kinds) == 1 and "hbm" not in fix.kinds[0] for fix in easy)
    assert max(len(each) for each in kinds(hard)) == 2
    assert max(len(each) for each in kinds(harder)) > 2


def test_what_cannot_be_captured_is_left_out() -> None:
    """A captured file holds few tensor degrees and microbatches: other changes are still tried."""
    point = crowded(2_000_000, (1, 4, 1))

    def only_own(training: Training, tensor: int | None) -> Workload:
        assert training.context_parallel == 1
        if (training.microbatch, training.sequence_parallel, tensor) != (4, False, 1):
            raise InputError("It was not captured so.")
        return tiny(microbatch=4, tensor=1)

    proposed = fixes(point, evaluated(point), only_own, {})
    assert ("recompute",) in kinds(proposed) and ("pipeline",) in kinds(proposed)
    assert ("microbatch",) not in kinds(proposed) and ("tensor",) not in kinds(proposed)


def test_changes_may_be_possible_together_only() -> None:
    """More of ZeRO than a split backward can have is tried with another schedule, and not alone."""
    point = CROWDED[-1]
    together = [
        fix
        for fix in fixes(point, evaluated(point), load_tiny, {})
        if {"--zero 2", "--zero 3"} & {*fix.options}
    ]
    assert together
    assert all("--pipeline-schedule 1f1b" in fix.options for fix in together)


def test_memory_is_not_suggested_where_it_is_not_the_reason() -> None:
    """Degrees that need more devices than there are do not fit any memory; solving them does."""
    chip: Accelerator = load_accelerator("tpuv4-lanes")
    workload = tiny(microbatch=1, tensor=2)
    point = Point(workload, chip, network(4), Training(8, 1), (4, 2, 2))
    proposed = fixes(point, evaluated(point), load_tiny, {})
    assert ("hbm_size",) not in kinds(proposed)
    assert proposed[0].options == ("--placement solve",) and proposed[0].feasible
