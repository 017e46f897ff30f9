"""Lower bound of the replayed time of a split, stage by stage: compiled.

With m microbatches on stages 1 … p, h microbatches in flight at a stage, forward work F, backward
work B (b: the first microbatch's, without accumulation), L = F + B, *heads* (what a stage waits for
before its first forward) and *tails* (what follows its last backward), for stages u ≤ s ≤ r:

- ``C_s``: the first microbatch comes to s, at the earliest after those before it, or with the head;
- ``D_r = C_r + h·F_r``: r has done its first h forwards (where h = m, all: ``G_r``);
- ``G_r``: r ends its last forward, at the earliest ``C_s + m·F_s + (m − h)·B_s + Σ_{s<j≤r} F_j``,
  less what the first backward saves where s has done that one (h < m);
- ``R_s = max over u of Σ_{u≤j<s} B_j + tail_u``: what follows the last backward of s.

A batch then takes at least, for every r and s (paths through the events that
`phaze_opt.placement.pipeline` replays):

    (a) G_r + h·B_r + R_r                          after the last forward of r
    (b) D_r + Σ_{s≤j≤r} b_j + (m−1)·B_s + (m−h)·F_s + R_s          after the first backward of s
    (c) D_r + Σ_{s≤j≤r} b_j + (m−h)·F_s + (m−h−1)·B_s + Σ_{s<j≤r} F_j + h·B_r + R_r

where (c) goes from s, whose last forward it passes, to r a second time, and is for m > h. Of GPipe,
(b) is the time itself, heads aside.

A split grows from its first stage on: a *front* holds what its stages so far add to these paths.
What stages to come add at least is in tables by their number and first layer (`least_of_rest`).
Both together bound every split that begins so; of a whole split, they are the bound above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, compiled_as, inlined
from phaze_opt.placement.closed_form import after_first_s, busy_s

PROVEN = 1e-10
"""Relative difference up to which a bound and a time count as equal: far above rounding."""

# Columns of a front: when the first microbatch leaves its last stage; Σ B and tail that follow the
# last backward of the next stage; (b) without D; G; (c) without D, h·B and R; the largest path.
ARRIVAL, AFTER, FIRST, LAST, TWICE, PATH = range(6)
FRONT = 6

# Rows of `least_of_rest`: least sums of L − saving, 2·L − saving, and L; what is to be added to
# the front's ARRIVAL and AFTER, or to its ARRIVAL alone; and the time whatever comes before.
_ONCE, _BOTH_WAYS, LOADS, _BETWEEN, _FROM, _ALONE = range(6)
REST = 6


@compiled_as("float64[:,::1], float64[:,::1], float64[:,::1], float64, int64[:,::1], boolean")
class SplitWork(NamedTuple):
    """What every possible stage does and holds, see `phaze_opt.placement.costs`.

    Attributes
    ----------
    forward_s, backward_s, parameters, in_flight_limit : (layers, layers + 1)
        Of every stage.
    saving_s_per_parameter
        By how much the first backward is shorter.
    all_held
        Whether every stage holds all microbatches (GPipe).
    """

    forward_s: FloatArray
    backward_s: FloatArray
    parameters: FloatArray
    saving_s_per_parameter: float
    in_flight_limit: IntArray
    all_held: bool


@inlined
def empty_front(front: FloatArray) -> None:
    """Begin a split: nothing is placed."""
    for column in range(FRONT):
        front[column] = -np.inf
    front[ARRIVAL] = 0.0


@inlined
def extend(
    front: FloatArray,
    forward: float,
    backward: float,
    saving: float,
    head: float,
    tail: float,
    held: int,
    microbatches: int,
    longer: FloatArray,
) -> None:
    """Add a stage to a front.

    Parameters
    ----------
    front
        Of the stages before it.
    forward, backward, saving, head, tail
        Of the stage.
    held, microbatches
        In flight at the stage; per batch.
    longer
        Becomes the front with the stage.
    """
    again = microbatches - held
    start = max(front[ARRIVAL], head)
    after = max(front[AFTER], tail)
    last = start + microbatches * forward
    if again > 0:
        last += again * backward - saving
    last = max(front[LAST] + forward, last)
    arrival = start + forward
    first_forwards = arrival + (held - 1) * forward
    path = last + after + held * backward
    if again == 0:
        first_forwards = max(first_forwards, last)
        path -= saving
    first = after_first_s(after, microbatches, again, forward, backward)
    first = max(front[FIRST], first)
    first += backward - saving
    twice = front[TWICE] + forward + backward - saving
    if again > 0:
        twice = max(twice, again * (forward + backward) - saving)
    path = max(path, first_forwards + first)
    path = max(path, first_forwards + twice + after + held * backward)
    longer[ARRIVAL] = arrival
    longer[AFTER] = after + backward
    longer[FIRST] = first
    longer[LAST] = last
    longer[TWICE] = twice
    longer[PATH] = max(front[PATH], path)


@inlined
def bound_s(front: FloatArray, rest: FloatArray, place: int, layer: int, all_held: bool) -> float:
    """Bound the splits that begin with a front.

    Parameters
    ----------
    front
        Of some stages.
    rest
        See `least_of_rest`.
    place, layer
        How many stages are to come, and the first layer that they hold.
    all_held
        Whether every stage holds all microbatches (GPipe).
    """
    least: float = front[PATH]
    if place == 0:
        return least
    arrival, after = front[ARRIVAL], front[AFTER]
    last = front[LAST]
    least = max(least, rest[_ALONE, place, layer], arrival + rest[_FROM, place, layer])
    least = max(least, arrival + after + rest[_BETWEEN, place, layer])
    begun = last if all_held else arrival
    least = max(least, begun + front[FIRST] + rest[_ONCE, place, layer])
    least = max(least, last + after + rest[LOADS, place, layer])
    return float(max(least, arrival + front[TWICE] + after + rest[_BOTH_WAYS, place, layer]))


@inlined
def precede(
    rest: FloatArray,
    place: int,
    i: int,
    after: int,
    j: int,
    forward: float,
    backward: float,
    saving: float,
    head: float,
    tail: float,
    again: int,
    microbatches: int,
    all_held: bool,
    before_s: float,
    limit_s: float,
) -> bool:
    """Let a stage come before some last stages, in the tables of what these add at least.

    Parameters
    ----------
    rest
        See `least_of_rest`; the rows of ``place`` and ``i`` become no larger.
    place, i, after, j
        The stages from this one on and their first layer, and those after it and theirs.
    forward, backward, saving, head, tail
        Of the stage.
    again, microbatches
        Those that are not in flight at the stage; per batch.
    all_held
        Whether every stage holds all microbatches (GPipe).
    before_s, limit_s
        What stages before it add at least, and what takes as long with them: that is left out.

    Returns
    -------
    Whether it takes less.
    """
    load, once = forward + backward, forward + backward - saving
    own = busy_s(microbatches, load, saving)
    first = after_first_s(once, microbatches, again, forward, backward)
    if all_held:
        first += (microbatches - 1) * forward
    own = max(own, first + rest[_ONCE, after, j])
    loads = rest[LOADS, after, j]
    last = microbatches * forward + (again + 1) * backward + loads
    if again > 0:
        last -= saving
        own = max(own, once + again * load + rest[_BOTH_WAYS, after, j])
    own = max(own, last, load + rest[_BETWEEN, after, j])
    if before_s + own >= limit_s:
        return False
    first_of = max(tail + own, forward + rest[_FROM, after, j])
    alone = max(head + first_of, rest[_ALONE, after, j])
    rest[_ONCE, place, i] = min(rest[_ONCE, place, i], once + rest[_ONCE, after, j])
    both_ways = load + once + rest[_BOTH_WAYS, after, j]
    rest[_BOTH_WAYS, place, i] = min(rest[_BOTH_WAYS, place, i], both_ways)
    rest[LOADS, place, i] = min(rest[LOADS, place, i], load + loads)
    rest[_BETWEEN, place, i] = min(rest[_BETWEEN, place, i], own)
    rest[_FROM, place, i] = min(rest[_FROM, place, i], first_of)
    rest[_ALONE, place, i] = min(rest[_ALONE, place, i], alone)
    return True


@inlined
def nothing_follows(rest: FloatArray, layers: int) -> None:
    """Begin the tables of `least_of_rest` with no stage after the last layer."""
    rest[_ONCE, 0, layers] = rest[_BOTH_WAYS, 0, layers] = rest[LOADS, 0, layers] = 0.0
    for row in (_BETWEEN, _FROM, _ALONE):
        rest[row, 0, layers] = -np.inf


@callee("float64[:,:,::1](SplitWork, float64[:,::1], float64[:,::1], int64[::1], int64, float64)")
def least_of_rest(
    work: SplitWork,
    head_s: FloatArray,
    tail_s: FloatArray,
    held: IntArray,
    microbatches: int,
    limit_s: float,
) -> FloatArray:
    """Bound what the last stages add, by their number and first layer.

    Parameters
    ----------
    work
        All possible stages.
    head_s, tail_s : (layers, layers + 1)
        Of every stage.
    held, microbatches
        See `phaze_opt.placement.chain.best_split`.
    limit_s
        What takes as long need not be told apart from what does not fit.

    Returns
    -------
    (rows, stages + 1, layers + 1)
        Infinite where no split of these layers into so many stages fits.
    """
    forward_s, backward_s, parameters, saving_s_per_parameter, in_flight_limit, all_held = work
    layers, stages = in_flight_limit.shape[0], len(held) - 1
    rest = np.full((REST, stages + 1, layers + 1), np.inf)
    nothing_follows(rest, layers)
    # How far a stage that begins with a layer, and the first so many stages, may reach.
    reach = np.zeros(layers + 1, np.int64)
    furthest = np.zeros(stages + 1, np.int64)
    for i in range(layers):
        for j in range(layers, i, -1):
            load = forward_s[i, j] + backward_s[i, j]
            saving = parameters[i, j] * saving_s_per_parameter
            if in_flight_limit[i, j] >= held[1] and busy_s(microbatches, load, saving) < limit_s:
                reach[i] = j
                break
    for stage in range(stages):
        for i in range(stage, furthest[stage] + 1):
            furthest[stage + 1] = max(furthest[stage + 1], reach[i])
    # The least that the stages before a layer add to ARRIVAL and AFTER together.
    before = np.full(layers + 1, np.inf)
    for j in range(1, reach[0] + 1):
        before[0] = min(before[0], tail_s[0, j])
    for i in range(layers):
        for j in range(i + 1, reach[i] + 1):
            before[j] = min(before[j], before[i] + forward_s[i, j] + backward_s[i, j])
    for place in range(1, stages + 1):
        again, any_fits = microbatches - held[place], False
        for i in range(min(layers - place, furthest[stages - place]), stages - place - 1, -1):
            for j in range(min(layers - place + 1, reach[i]), i, -1):
                if in_flight_limit[i, j] < held[place] or rest[LOADS, place - 1, j] == np.inf:
                    continue
                saving = parameters[i, j] * saving_s_per_parameter
                any_fits |= precede(
                    rest,
                    place,
                    i,
                    place - 1,
                    j,
                    forward_s[i, j],
                    backward_s[i, j],
                    saving,
                    head_s[i, j],
                    tail_s[i, j],
                    again,
                    microbatches,
                    all_held,
                    before[i],
                    limit_s,
                )
        if not any_fits:
            break
    return rest
