"""How many messages share a link of a torus when all groups of ranks communicate at once.

Rank r is at the coordinates that its digits are in the mixed radix of the extents, first axis
first. Messages go axis by axis, in order, the shorter way round (dimension-order routing, W. J.
Dally and C. L. Seitz, IEEE Transactions on Computers C-36, 1987); a tie goes up.

When every rank sends to the one ``shift`` ranks further, all devices of a line along an axis go
the same way, by that digit of the shift, or one more after a carry. So ``e`` messages share each
link of the line if they go ``e`` places. Groups are ``group`` ranks, ``stride`` apart, and all of
them communicate; in rings through them nearly all messages are such a shift by the stride.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence


def is_grid(cuts: Iterable[int], group: int, stride: int) -> bool:
    """Say whether every group is a grid of its own: whole axes, or equal parts or steps of them.

    Parameters
    ----------
    cuts
        Ranks at which the lines along one axis end and those along the next one begin.
    group, stride
        Ranks of each group, and how far they are apart.
    """
    parts = (stride, group * stride)
    return all(cut % part == 0 or part % cut == 0 for cut in cuts for part in parts)


def shift_load(extents: Sequence[int], shift: int) -> int:
    """Return how many messages share the busiest link when every rank sends one so far."""
    return max(1, *(max(both) for both in _loads(extents, shift)))


def ring_load(extents: Sequence[int], group: int, stride: int) -> int:
    """Return how many rings share the busiest link, in the order of ranks through every group.

    Exact for grids, whose last ranks send to their first ones no further than the others do. Else
    an upper bound: the last ranks' messages are counted as if all ranks sent so far.

    Parameters
    ----------
    extents
        Of the torus.
    group, stride
        Ranks of each group, and how far they are apart.
    """
    if is_grid(itertools.accumulate(extents[:-1], operator.mul), group, stride):
        return shift_load(extents, stride)
    ahead, back = _loads(extents, stride), _loads(extents, -(group - 1) * stride)
    return max(
        up + closing
        for both, closings in zip(ahead, back, strict=True)
        for up, closing in zip(both, closings, strict=True)
    )


def _loads(extents: Sequence[int], shift: int) -> list[tuple[int, int]]:
    """Return the messages on the busiest link of every axis, upwards and downwards."""
    left = shift % math.prod(extents)
    loads, carries = [], False
    for extent in extents:
        left, digit = divmod(left, extent)
        places = {digit, (digit + 1) % extent} if carries else {digit}
        up = max((p for p in places if 2 * p <= extent), default=0)
        down = max((extent - p for p in places if 2 * p > extent), default=0)
        loads.append((up, down))
        carries = carries or digit > 0
    return loads
