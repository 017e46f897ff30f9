"""A pipeline over several kinds of device: degrees, stages, and the kind of each stage.

Every stage is on devices of one kind, as many of them as any other stage: all have the same tensor
and data degrees. Messages between stages are taken to go over one level of the network; the
replicas of a stage are neighbours. Some devices of a kind, or all, may stay unused.

For every tensor and data degree the fastest chain of stages is searched
(`phaze_opt.placement.kind_splits`), those with the least bound first, until no bound is below the
best time, or a stated effort is spent: what is left is the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError
from phaze_opt.network.message import message_at
from phaze_opt.network.term import Term
from phaze_opt.passes.layer_cost import LayerPasses
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, most_data
from phaze_opt.placement.closed_form import even_share
from phaze_opt.placement.describe import describe
from phaze_opt.placement.kind_splits import KindsSearched, KindsWork, search_kinds
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.split_bounds import PROVEN
from phaze_opt.placement.stage_kinds import replayed_on_kinds
from phaze_opt.placement.timing import ways_to_gather

MOST_STEPS = 2**22
"""Effort of one answer, see `phaze_opt.placement.split_search.Searched`; about a second."""

_LEFT_FOR_OTHERS = 4
"""What is left is so many times what one pair of degrees may take."""

_LEAST_STEPS = 2**12
"""Effort for one pair of degrees, even where none is left."""

MOST_LAYERS = 160
"""The search takes time with their fourth power, and of two kinds memory with their third."""


class KindsPlacement(NamedTuple):
    """A placement, and the kind of device of each of its stages."""

    placement: Placement
    kinds: tuple[int, ...]


class KindsCosts(CandidateCosts):
    """Costs of stages between which messages go over one level."""

    def __init__(self, problem: PlacementProblem, level: int) -> None:
        super().__init__(problem)
        self._level = level

    def message(self, candidate: Candidate) -> Term:
        """Return the cost of a message to the next stage, whatever the number of stages."""
        if candidate.pipeline == 1:
            return super().message(candidate)
        return message_at(self.problem.cluster, self._level, candidate.stride("pipeline"))


class _Found(NamedTuple):
    """Stages of one pair of degrees."""

    time_s: float
    candidate: Candidate
    starts: IntArray
    kinds: tuple[int, ...]


MostStages = Callable[[int], Sequence[int]]
"""Returns the most stages of each kind, for stages of so many devices."""


def is_over_kinds(problem: PlacementProblem) -> bool:
    """Say whether the layers of a problem can be placed over several kinds of device."""
    training, costs = problem.training, CandidateCosts(problem)
    whole = training.interleave == 1 and not training.splits_backward and not training.zero_group
    short = costs.layers <= MOST_LAYERS
    return whole and training.has_tensor_groups_only and costs.is_chain and short


def solve_kinds(
    problems: Sequence[PlacementProblem],
    most_stages: MostStages,
    level: int,
    known_s: float = np.inf,
) -> tuple[KindsPlacement | None, float]:
    """Find the fastest pipeline over several kinds of device.

    Parameters
    ----------
    problems
        The same layers on each kind; a chain. All have the same cluster, that of all devices, and
        stages of one chunk with whole backwards.
    most_stages
        See `MostStages`.
    level
        Of the network, innermost 0, that messages between stages go over.
    known_s
        Time of a batch that is known: what takes longer need not be found.

    Returns
    -------
    found
        The placement, ``None`` if none fits or is faster.
    bound_s
        A time that no pipeline over the kinds is below, up to ``known_s``.

    Raises
    ------
    InputError
        If there are too many layers.
    """
    costs = [KindsCosts(problem, level) for problem in problems]
    layers = costs[0].layers
    if layers > MOST_LAYERS:
        raise InputError(
            f"The model has {layers} layers, but over several kinds of device at most "
            f"{MOST_LAYERS} are placed."
        )
    if not costs[0].is_chain:
        raise InputError(
            "The model is no chain of layers, but only chains are placed over several kinds of "
            "device."
        )
    best: _Found | None = None
    left, bound_s = MOST_STEPS, np.inf
    candidates = sorted(_candidates(costs, most_stages), key=lambda each: each[:2])
    for least_s, candidate, most in candidates:
        if least_s >= known_s * (1.0 - PROVEN):
            break
        group = costs[0].group(candidate)
        for ahead in (True, False) if group.zero in (1, 2) and group.overlaps else (True,):
            work = _work(costs, candidate, most, ahead=ahead)
            steps = max(left // _LEFT_FOR_OTHERS, _LEAST_STEPS)
            done = KindsSearched(*search_kinds(work, known_s, steps))
            left -= done.steps
            bound_s = min(bound_s, done.bound_s)
            if done.time_s < known_s:
                known_s = done.time_s
                count = int((done.stages[1] >= 0).sum())
                own = candidate.degrees._replace(pipeline=count)
                starts, kinds = done.stages[:, :count]
                named = tuple(kinds.tolist())
                best = _Found(known_s, Candidate.of(own), starts, named)
    bound_s = min(bound_s, known_s)
    return (None if best is None else _described(costs, best, bound_s)), bound_s


def _candidates(
    costs: Sequence[CandidateCosts], most_stages: MostStages
) -> Iterator[tuple[float, Candidate, IntArray]]:
    """Yield every pair of degrees with a bound of its times and the most stages of each kind."""
    problem, layers = costs[0].problem, costs[0].layers
    for tensor in sorted(problem.layers):
        # What each layer takes on the kind that is fastest at it.
        least_s = np.min([_work_s(each.problem, tensor) for each in costs], axis=0)
        for data in range(1, most_data(tensor, problem.cluster, problem.training) + 1):
            each_most = most_stages(tensor * data)
            most = np.array([min(count, layers) for count in each_most], dtype=np.int64)
            if np.count_nonzero(most) < 2:
                continue  # the stages of one kind
            stages = min(int(most.sum()), layers)
            share = float(even_share(problem.training.microbatches(data), stages))
            candidate = Candidate.of(Degrees(2, data, tensor))
            yield float(least_s.sum()) / share, candidate, most


def _work_s(problem: PlacementProblem, tensor: int) -> FloatArray:
    """Return what every layer takes for one microbatch."""
    each_s = [problem.column(tensor, f"{name}.seconds") for name in LayerPasses._fields]
    work_s: FloatArray = np.add.reduce(each_s)
    return work_s


def _work(
    costs: Sequence[CandidateCosts], candidate: Candidate, most: IntArray, *, ahead: bool
) -> KindsWork:
    """Return what stages do on every kind, with weights gathered at either time."""

    def of_kind(each: CandidateCosts) -> tuple[FloatArray, ...]:
        work, tail_s, head_s = each.work(candidate), each.tail_s(candidate), each.no_time_s
        if ahead:
            head_s = work.head_s
        else:
            tail_s = tail_s + each.final_gather_s(candidate, ahead)
        saving_s = work.stages.held.added * work.stages.accumulation_s_per_parameter
        return work.forward_s, work.backward_s, saving_s, head_s, tail_s

    tables = zip(*map(of_kind, costs), strict=True)
    forward_s, backward_s, saving_s, head_s, tail_s = map(np.stack, tables)
    limits = [each.stages(candidate).held.in_flight_limit for each in costs]
    return KindsWork(
        forward_s,
        backward_s,
        saving_s,
        head_s,
        tail_s,
        np.stack(limits),
        most,
        costs[0].microbatches(candidate.data),
        costs[0].schedule == "gpipe",
    )


def _described(costs: Sequence[CandidateCosts], found: _Found, bound_s: float) -> KindsPlacement:
    """Describe stages, each by the costs of its kind."""
    layout = Layout.of_starts(found.candidate, found.starts, costs[0].layers)
    # The search takes the way to gather that is faster but for rounding.
    ways = ways_to_gather(costs[0], layout)
    options = [(way, replayed_on_kinds(costs, way, found.kinds)) for way in ways]
    layout, done = min(options, key=lambda option: option[1].time_s)
    each = [describe(own, layout, done) for own in costs]
    stages = tuple([each[kind].stages[stage] for stage, kind in enumerate(found.kinds)])
    heaviest = max(range(len(stages)), key=lambda index: (stages[index].load_s, -index))
    whole = each[found.kinds[heaviest]]
    return KindsPlacement(replace(whole, stages=stages).searched(bound_s), found.kinds)
