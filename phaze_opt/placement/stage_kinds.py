"""Time of a batch where the stages of a pipeline run on different kinds of device.

All kinds have the same layers and degrees, and costs of their own: what a stage does, and what
follows its last backward, are those of its kind. The stages are replayed together, event by event.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.deep import is_deep
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.pipeline import PipelineWork, finish_s
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import layer_starts, place_again, placed_candidate
from phaze_opt.placement.timing import (
    Replayed,
    pipeline_work,
    stage_tails,
    ways_to_gather,
    whole_tails_s,
)


def replayed_on_kinds(
    costs: Sequence[CandidateCosts], layout: Layout, kinds: Sequence[int]
) -> Replayed:
    """Replay a batch of stages of one chunk, each on a kind of device.

    Parameters
    ----------
    costs
        Of every kind, at the same degrees.
    layout
        The stages; their backwards are whole.
    kinds : (stages,)
        Whose costs those of each stage are.
    """
    own, stages = np.asarray(kinds), np.arange(len(kinds))
    works = [pipeline_work(each, layout) for each in costs]

    def of_stages(name: str) -> FloatArray:
        tables: FloatArray = np.stack([getattr(work, name) for work in works])
        return np.ascontiguousarray(tables[own, :, stages].T)

    names = "forward_s", "backward_s", "first_saving_s", "head_s"
    work = PipelineWork(*map(of_stages, names))
    ends_s = finish_s(work, costs[0].microbatches(layout.candidate.data), costs[0].schedule)
    tails_s = np.stack([whole_tails_s(each, layout) for each in costs])[own, stages]
    each_kind = [stage_tails(each, layout) for each in costs]
    tails = [each_kind[kind][stage] for stage, kind in enumerate(kinds)]
    return Replayed(work, tails, float((ends_s + tails_s).max()))


def fastest_on_kinds(
    costs: Sequence[CandidateCosts], layout: Layout, kinds: Sequence[int]
) -> tuple[Layout, Replayed]:
    """Do as `replayed_on_kinds`, with weights gathered when the batch takes less."""
    ways = ways_to_gather(costs[0], layout)
    answers = [(way, replayed_on_kinds(costs, way, kinds)) for way in ways]
    return min(answers, key=lambda answer: answer[1].time_s)


def times_with_one_slower_s(
    problem: PlacementProblem, slower: PlacementProblem, placement: Placement
) -> FloatArray:
    """Return the times of a batch if one stage or another is slower; ``(stages,)``.

    Where stages have several chunks, or backwards in two parts, or the chain is too deep for its
    tables, all stages are taken to be slower: no time is too short.

    Parameters
    ----------
    problem, slower
        The same layers on the devices of most stages, and on those of one.
    placement
        Of the problem.
    """
    plain = placement.pipeline_schedule in ("1f1b", "gpipe") and not is_deep(problem)
    if placement.pipeline == 1 or not plain:
        time_s = place_again(slower, placement).time_per_batch_s
        return np.full(placement.pipeline, max(time_s, placement.time_per_batch_s))
    costs = [CandidateCosts(each) for each in (problem, slower)]
    starts = layer_starts(placement)
    layout = Layout.of_starts(placed_candidate(placement), starts, costs[0].layers)
    stages = range(placement.pipeline)
    kinds = [[int(stage == slow) for stage in stages] for slow in stages]
    times_s = [fastest_on_kinds(costs, layout, own)[1].time_s for own in kinds]
    # A schedule that is not proven may be shorter on a slower device.
    return np.maximum(times_s, placement.time_per_batch_s)
