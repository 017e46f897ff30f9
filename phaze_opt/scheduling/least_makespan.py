"""Least makespan of a pass on many chips at once: a lower bound on what `solve_schedule` can give.

It bounds the shortest schedule, so it holds for every method. Where it is told larger durations or
shares, the shortest schedule is no shorter; so the bound also holds where its inputs are themselves
lower bounds. The rule is ``exclusive``: beside an operator on all cores nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.scheduling.instance import direct_predecessors
from phaze_opt.scheduling.least_kernel import RESOURCES, least_of_parts
from phaze_opt.scheduling.reduction import (
    contracted_ancestors,
    part_precedences,
    series_parts,
)
from phaze_opt.scheduling.schedule_problem import CoreType


@dataclass(frozen=True, eq=False)
class OperatorColumns:
    """The operators of a pass on many chips; see `schedule_problem.ScheduleOperator`.

    Attributes
    ----------
    one_core_s, all_cores_s : (chips, operators)
        Durations in the two modes. An operator on no core has one mode, the first.
    hbm_fraction, glb_fraction, link_fraction : (chips, operators)
        Share of each bandwidth on one core.
    num_tc, num_vc : (chips,)
        Cores of each chip.
    """

    one_core_s: FloatArray
    all_cores_s: FloatArray
    hbm_fraction: FloatArray
    glb_fraction: FloatArray
    link_fraction: FloatArray
    num_tc: FloatArray
    num_vc: FloatArray


@dataclass(frozen=True, eq=False)
class PassShapes:
    """What does not depend on the chip, of passes that are bounded together.

    Attributes
    ----------
    cores
        Of each pass, the cores that each operator occupies.
    edges
        Of each pass, the precedences ``(before, after)``, which point forward.
    """

    cores: tuple[tuple[CoreType, ...], ...]
    edges: tuple[tuple[tuple[int, int], ...], ...]


def least_makespan(shapes: PassShapes, columns: OperatorColumns) -> FloatArray:
    """Bound the makespan of every schedule without residency from below.

    Parameters
    ----------
    shapes
        Some passes. What is derived from them is kept by the object, not by its content.
    columns
        Durations and shares of the operators of all passes, one pass after the other.

    Returns
    -------
    least_s : (chips, passes)
    """
    one_core_s, all_cores_s = columns.one_core_s, columns.all_cores_s
    instant = ~(np.minimum(one_core_s, all_cores_s) > 0.0).any(axis=0)
    parts = _parts(shapes, instant.tobytes())
    kept = parts.operators
    shares = np.empty((len(one_core_s), len(kept), RESOURCES))
    for resource, share in enumerate(
        (
            parts.on_cores[0] / columns.num_tc[:, np.newaxis],
            parts.on_cores[1] / columns.num_vc[:, np.newaxis],
            columns.hbm_fraction[:, kept],
            columns.glb_fraction[:, kept],
            columns.link_fraction[:, kept],
        )
    ):
        shares[:, :, resource] = share
    least_s = np.empty((len(one_core_s), len(shapes.cores)))
    least_of_parts(
        np.ascontiguousarray(one_core_s[:, kept]),
        np.ascontiguousarray(np.where(parts.has_modes, all_cores_s[:, kept], np.inf)),
        shares,
        parts.first,
        parts.first_before,
        parts.before,
        parts.first_part,
        least_s,
    )
    return least_s


def least_joint_makespan(
    other_s: FloatArray, least_hbm_s: FloatArray, overhead_s: FloatArray
) -> FloatArray:
    """Bound the makespan of every schedule of the joint problem of `residency` from below.

    Its operators run one after another, each on all cores.

    Parameters
    ----------
    other_s, overhead_s : (chips, operators)
        As in `residency.Residency`.
    least_hbm_s : (chips, operators)
        Least time for the HBM, whatever is resident; infinity where no level fits.

    Returns
    -------
    least_s : (chips,)
    """
    return np.asarray((np.maximum(other_s, least_hbm_s) + overhead_s).sum(axis=1))


def roofline_makespan(
    edges: tuple[tuple[int, int], ...], latency_s: FloatArray, busy_s: Sequence[FloatArray]
) -> FloatArray:
    """Bound the makespan of every schedule without residency by chains and resources alone.

    Parameters
    ----------
    edges
        Precedences ``(before, after)``, which point forward.
    latency_s : (chips, operators)
        Least time of every operator in either mode.
    busy_s
        For every resource, the least time for which each operator takes all of it; same shape.

    Returns
    -------
    least_s : (chips,)
    """
    end_s = latency_s.copy()
    for before, after in sorted(edges, key=itemgetter(1)):
        through_s = end_s[:, before] + latency_s[:, after]
        np.maximum(end_s[:, after], through_s, out=end_s[:, after])
    sums_s = [part_s.sum(axis=1) for part_s in busy_s]
    return np.asarray(np.maximum.reduce([end_s.max(axis=1, initial=0.0), *sums_s]))


@dataclass(frozen=True, eq=False)
class _Parts:
    """What does not depend on the chip: parts of which each must end before the next one starts.

    Attributes
    ----------
    operators : (operators with a duration,)
        Pass by pass, part by part, in topological order.
    first : (parts + 1,)
        Where each part begins in ``operators``.
    first_before : (operators with a duration + 1,)
        Where the predecessors of each operator begin in ``before``.
    before : (precedences,)
        Direct predecessors in the part, numbered from its first operator.
    on_cores : (2, operators with a duration)
        Whether each operator takes a tensor core, and a vector core.
    has_modes : (operators with a duration,)
        Whether each operator takes a core at all.
    first_part : (passes + 1,)
        Where the parts of each pass begin.
    """

    operators: IntArray
    first: IntArray
    first_before: IntArray
    before: IntArray
    on_cores: BoolArray
    has_modes: BoolArray
    first_part: IntArray


@lru_cache(maxsize=1024)
def _parts(shapes: PassShapes, instant: bytes) -> _Parts:
    """Split passes into parts, cached; ``instant`` are the bytes of an array of truth values."""
    skipped = np.frombuffer(instant, dtype=np.bool_)
    begins = np.cumsum([0, *map(len, shapes.cores)]).tolist()
    operators: list[int] = []
    sizes: list[int] = []
    before: list[list[int]] = []
    parts_of_pass: list[int] = []
    for edges, (begin, end) in zip(shapes.edges, pairwise(begins), strict=True):
        kept, first, direct = _parts_of_pass(edges, skipped[begin:end].copy())
        operators += (kept + begin).tolist()
        sizes += np.diff(first).tolist()
        before += direct
        parts_of_pass.append(len(first) - 1)
    cores = [kind for of_pass in shapes.cores for kind in of_pass]
    on_cores = [[kind in cores[i] for i in operators] for kind in ("TC", "VC")]
    return _Parts(
        operators=np.array(operators, dtype=np.int64),
        first=np.cumsum([0, *sizes], dtype=np.int64),
        first_before=np.cumsum([0, *map(len, before)], dtype=np.int64),
        before=np.array([j for own in before for j in own], dtype=np.int64),
        on_cores=np.array(on_cores, dtype=np.bool_),
        has_modes=np.array([cores[i] != "none" for i in operators], dtype=np.bool_),
        first_part=np.cumsum([0, *parts_of_pass], dtype=np.int64),
    )


def _parts_of_pass(
    edges: tuple[tuple[int, int], ...], skipped: BoolArray
) -> tuple[IntArray, IntArray, list[list[int]]]:
    """Split one pass: operators by parts, where each part begins, and direct predecessors."""
    pairs = np.array(sorted(set(edges)), dtype=np.int64).reshape(-1, 2)
    ancestors = contracted_ancestors(skipped, pairs)
    kept, first = series_parts(skipped, ancestors)
    before = [
        sorted(direct)
        for part in np.split(kept, first[1:-1])
        for direct in direct_predecessors(part_precedences(part, ancestors)[0])
    ]
    return kept, first, before
