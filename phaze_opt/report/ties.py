"""Designs of a list that are as good as the one before them: tables fold them under the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phaze_opt.spec.ordering import value_bin


@dataclass(frozen=True)
class Tie:
    """The place of a line among those that are as good.

    Attributes
    ----------
    group
        Number of the group, from 0, in the order of the list.
    is_first
        Whether it is the line that stands for the group.
    others
        How many lines are folded under it; 0 of those that are.
    """

    group: int
    is_first: bool
    others: int


def ties(values: Sequence[Sequence[float] | None]) -> list[Tie]:
    """Group the lines of a list that follow one another and count as equal in every value.

    Parameters
    ----------
    values
        Of every line, the best first; ``None`` of a line without values, which stands alone.
    """
    keys = [None if each is None else tuple(map(value_bin, each)) for each in values]
    groups: list[list[int]] = []
    for place, key in enumerate(keys):
        if groups and key is not None and keys[groups[-1][0]] == key:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [
        Tie(number, place == group[0], len(group) - 1 if place == group[0] else 0)
        for number, group in enumerate(groups)
        for place in group
    ]
