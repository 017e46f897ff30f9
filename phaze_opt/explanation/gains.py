"""What a tenth more of each resource would bring on the whole step.

Every answer is an evaluation with that one resource changed, the others as before: with the same
placement, and with the placement that is then the fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phaze_opt.evaluation import Evaluation, place_point
from phaze_opt.explanation.changes import Change
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.solve_placement import place_again
from phaze_opt.point import CostedPoint, cost_point


@dataclass(frozen=True)
class Gain:
    """What more of one resource brings.

    Attributes
    ----------
    resource
        ``compute`` (rate of the PE arrays), ``lanes`` (rate of the vector lanes), ``clock`` (of
        the chip: arrays, lanes, L2 and GLB), ``glb`` and ``hbm`` (bandwidth), ``hbm_size`` (or
        ``glb_size`` where there is no HBM, and then no ``hbm``),
        ``link_0``, ``link_1``, … (bandwidth of a network level, innermost first), ``taper_1``, …
        (of the leaf switches of a level, where they have one),
        ``network_latency`` (of all levels, with the launch), ``overhead`` (per operator);
        ``overlap_data`` and ``overlap_all`` for more communication beside compute, see
        `phaze_opt.training.Training`; ``launch_compiled`` and ``launch_graphs`` for fewer kernels
        that the host launches, all else as it was; ``even_rows`` and ``dropless_rows`` for experts
        without rows that even routing does not give them.
    factor
        What it was multiplied by, but for rounding; 1 for overlap, launches and rows.
    options
        The options of ``phaze-opt evaluate`` with which it has the changed point: ``--set`` with
        the changed numbers of the chip or of the network's levels, ``--overlap``, ``--launch``,
        ``--expert-imbalance`` or ``--expert-capacity``. None for ``compute`` and ``lanes``, which
        no chip has alone: arrays and lanes share a clock.
    feasible
        False only if a power limit stands in the way.
    throughput_gain
        Relative gain of throughput: 0.05 is 5 % faster. With the placement found anew where it was
        to be found, else with the given degrees. 0 if infeasible.
    same_placement_gain
        The same with every layer where it was.
    time_per_batch_s, same_placement_time_per_batch_s
        What the gains are computed from; the first is ``None`` if infeasible.
    placement
        The degrees of ``throughput_gain``, as ``PPxDPxTP``.
    """

    resource: str
    factor: float
    options: tuple[str, ...]
    feasible: bool
    throughput_gain: float
    same_placement_gain: float
    time_per_batch_s: float | None
    same_placement_time_per_batch_s: float
    placement: str | None


def degrees_text(evaluation: Evaluation) -> str | None:
    """Write the degrees of an evaluation as ``PPxDPxTP``; ``None`` without a placement."""
    placed = evaluation.placement
    return None if placed is None else placed.degrees_text


@dataclass(frozen=True, eq=False)
class TriedChange:
    """A changed point, its layers estimated and scheduled.

    Attributes
    ----------
    change
        What was changed.
    costed
        On all of its network, to be placed anew.
    same
        On the slice that the point took before it was changed.
    """

    change: Change
    costed: CostedPoint
    same: CostedPoint


def try_changes(
    changed: Iterable[Change], cache: ScheduleCache, slice_index: int = 0
) -> tuple[TriedChange, ...]:
    """Estimate and schedule the layers of changed points.

    Parameters
    ----------
    changed
        From `phaze_opt.explanation.changes`.
    cache
        Schedules by content; solved ones are added.
    slice_index
        Which slice of the network the point takes; see `CostedPoint`.
    """

    def tried(change: Change) -> TriedChange:
        whole = cost_point(change.point, cache)
        same = cost_point(change.point, cache, slice_index) if slice_index else whole
        return TriedChange(change, whole, same)

    return tuple(map(tried, changed))


def gains(
    tried: Sequence[TriedChange], base: Evaluation, cache: ScheduleCache | None = None
) -> tuple[Gain, ...]:
    """Place the layers with more of every resource.

    Parameters
    ----------
    tried
        From `try_changes`.
    base
        The evaluation of the point as it is; without a placement there is nothing to gain from.
    cache
        As for `try_changes`.

    Returns
    -------
    gains
        The largest first.
    """
    before_s = base.time_per_batch_s
    if base.placement is None or before_s is None:
        return ()
    measured = []
    for trial in tried:
        anew = place_point(trial.costed, cache)
        same_s = place_again(trial.same.problem, base.placement).time_per_batch_s
        after_s = anew.time_per_batch_s
        measured.append(
            Gain(
                resource=trial.change.resource,
                factor=trial.change.factor,
                options=trial.change.options,
                feasible=anew.feasible,
                throughput_gain=0.0 if after_s is None else before_s / after_s - 1.0,
                same_placement_gain=before_s / same_s - 1.0,
                time_per_batch_s=after_s,
                same_placement_time_per_batch_s=same_s,
                placement=degrees_text(anew),
            )
        )
    return tuple(sorted(measured, key=lambda gain: (-gain.throughput_gain, gain.resource)))
