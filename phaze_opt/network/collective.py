"""What collectives cost on a cluster: seconds and bytes sent.

With `phaze_opt.network.message` this is the only description of both. A group of devices is
``group`` ranks, ``stride`` apart. Every algorithm is a `Term`: its time is ``a + b · bytes + c ·
√bytes`` and it sends a share of the tensor over each level. ``a`` is the launch and the latency of
each step; ``b`` the share of the tensor over the bandwidth per device and direction (the α–β
model); ``c`` the ramp, because libraries cut medium transfers into pieces that do not fill the
links (0 where it has not been measured). A collective takes the algorithm with the least time, so
its time is the lower envelope of a few such curves: see `collective_terms`.

All groups of one extent and stride communicate at the same time. On a switch each has links of its
own. On a ring or torus, groups whose ranks are some places apart pass through one another's
devices, and all that pass through a link share its bandwidth; `phaze_opt.network.torus` counts.
Those on tapered leaf switches share the links above them; `phaze_opt.network.uplinks` counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.choices import CollectiveName
from phaze_opt.errors import InputError
from phaze_opt.network.algorithms import (
    changes_rails,
    flat_terms,
    halves_beyond_leaves,
    hierarchical_term,
    reduces_in_switch,
)
from phaze_opt.network.cluster import Cluster, launch_s, outermost_level
from phaze_opt.network.groups import WholeUnits, levels_with_units, members_per_level
from phaze_opt.network.term import Term, cheapest, nothing_sent, one_after_the_other

__all__ = [
    "COLLECTIVES",
    "CollectiveCost",
    "CollectiveName",
    "as_costly",
    "collective_cost",
    "collective_s",
    "collective_terms",
    "has_ranges",
    "rising_starts",
    "split_terms",
    "tensor_terms",
]

COLLECTIVES: tuple[CollectiveName, ...] = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
)


@dataclass(frozen=True)
class CollectiveCost:
    """One collective by its cheapest algorithm.

    Attributes
    ----------
    algorithm
        Its name; ``"none"`` for a single device.
    time_s
        Its time.
    bytes_by_level
        Sent per device over each level, innermost first; see `Term.sent_per_byte`.
    """

    algorithm: str
    time_s: float
    bytes_by_level: tuple[float, ...]


def collective_cost(
    kind: CollectiveName, size_bytes: float, group: int, cluster: Cluster, stride: int = 1
) -> CollectiveCost:
    """Return seconds and bytes of one collective by its cheapest algorithm.

    Parameters and errors are those of `collective_s`.
    """
    best = cheapest(collective_terms(kind, group, cluster, stride), size_bytes)
    sent = tuple(share * size_bytes for share in best.sent_per_byte)
    return CollectiveCost(best.algorithm, best.seconds(size_bytes), sent)


def collective_s(
    kind: CollectiveName, size_bytes: float, group: int, cluster: Cluster, stride: int = 1
) -> float:
    """Return the time of one collective by its cheapest algorithm.

    Parameters
    ----------
    kind
        One of `COLLECTIVES`.
    size_bytes
        Size of the whole (unsharded) tensor: what each device holds after an all-gather, before a
        reduce-scatter, before and after an all-reduce, and sends in total in an all-to-all.
    group
        Devices taking part; one device takes no time.
    cluster
        The network.
    stride
        Distance of the group's ranks: 1 for neighbours (a tensor-parallel group), the tensor
        degree for a data-parallel one.

    Raises
    ------
    InputError
        If the kind is unknown or the group does not fit the cluster's network.
    """
    return min(t.seconds(size_bytes) for t in collective_terms(kind, group, cluster, stride))


@lru_cache(maxsize=65536)
def collective_terms(
    kind: CollectiveName, group: int, cluster: Cluster, stride: int = 1
) -> tuple[Term, ...]:
    """Return the cost of every algorithm that can run this collective on this group.

    Parameters and errors are those of `collective_s`.
    """
    if kind not in COLLECTIVES:
        raise InputError(
            f"The collective {kind!r} is unknown, but allowed are: {', '.join(COLLECTIVES)}."
        )
    if group < 1:
        raise InputError(f"group is {group}, but it must be at least 1.")
    if (alike := as_costly(kind)) != kind:
        return collective_terms(alike, group, cluster, stride)
    if group == 1:
        return (nothing_sent(cluster),)
    terms = flat_terms(kind, group, cluster, stride)
    members = members_per_level(group, cluster, stride)
    if members is not None and changes_rails(members, cluster, stride):
        members = None  # level by level, all would stay on their rails
    if members is not None and (len(members) > 1 or cluster.levels[0].is_direct):
        terms.append(hierarchical_term(kind, members, cluster, stride))
        if halves_beyond_leaves(kind, members, cluster):
            terms.append(hierarchical_term(kind, members, cluster, stride, rings=True))
    if kind == "all_reduce" and members is not None and reduces_in_switch(members, cluster):
        terms.append(hierarchical_term(kind, members, cluster, stride, in_switch=True))
    start_s = launch_s(cluster, outermost_level(group, cluster, stride))
    return tuple(term._replace(latency_s=start_s + term.latency_s) for term in terms)


@lru_cache(maxsize=65536)
def split_terms(
    kind: CollectiveName,
    inside: int,
    stride: int,
    outside: int,
    outer_stride: int,
    cluster: Cluster,
) -> tuple[Term, ...]:
    """Return what a collective costs among groups of neighbours that are further apart.

    It goes inside the groups and among those at the same place of all groups, each in its best way:
    an all-reduce is a reduce-scatter inside, an all-reduce among them, and an all-gather inside.

    Parameters
    ----------
    kind
        No all-to-all.
    inside, stride
        Members of each group, and how far they are apart.
    outside, outer_stride
        Groups, and how far those at the same place are apart.
    cluster
        The network.

    Raises
    ------
    InputError
        As `collective_terms`.
    """
    if inside == 1:
        return collective_terms(kind, outside, cluster, outer_stride)
    share = 1.0 / inside
    others = collective_terms(kind, outside, cluster, outer_stride)
    if kind != "all_reduce":
        own = collective_terms(kind, inside, cluster, stride)
        return tuple(
            [one_after_the_other(first, next_, share) for first in own for next_ in others]
        )
    scatters = collective_terms("reduce_scatter", inside, cluster, stride)
    gathers = collective_terms("all_gather", inside, cluster, stride)
    both = [one_after_the_other(*each, 1.0) for each in zip(scatters, gathers, strict=True)]
    return tuple([one_after_the_other(first, next_, share) for first in both for next_ in others])


def as_costly(kind: CollectiveName) -> CollectiveName:
    """Return the collective of equal costs: a gather is a reduce-scatter backwards."""
    return "reduce_scatter" if kind == "all_gather" else kind


def tensor_terms(group: int, cluster: Cluster) -> tuple[tuple[Term, ...], ...]:
    """Return what every kind of collective costs among neighbours, in the order of `COLLECTIVES`.

    All that a tensor-parallel group takes from the network: where it is equal, its layers are.
    """
    return tuple([collective_terms(kind, group, cluster) for kind in COLLECTIVES])


def has_ranges(cluster: Cluster) -> bool:
    """Say whether `rising_starts` knows ranges: not where the outermost level is not uniform.

    A larger group may fit a torus, or leaf switches, better.
    """
    return levels_with_units(cluster)[-1].is_uniform


def rising_starts(cluster: Cluster, units: WholeUnits, begins: IntArray, most: int) -> IntArray:
    """Return where ranges of group sizes begin in which a larger group is never faster.

    That holds for all-reduces of every size, and for messages between groups. Among groups that
    reach beyond the units of the level below the outermost one, rings take longer the larger they
    are, and so do hierarchical algorithms among those that fill whole units: a range begins at the
    first of these, too. Recursive halving goes best among a power of two, of members or of units.

    Parameters
    ----------
    cluster
        The network; see `has_ranges`.
    units
        Of the stride of the groups' ranks.
    begins
        Where ranges begin at least, 1 included.
    most
        Largest group.

    Returns
    -------
    starts
        Rising.
    """
    levels = levels_with_units(cluster)
    # Within units, and up to the first group beyond, everything changes with every member.
    starts = [begins, np.arange(1, units.joined + 2)] if len(levels) > 1 else [begins]
    if any(level.halving for level in levels):
        powers = 2 ** np.arange(most.bit_length(), dtype=np.int64)
        starts += [powers, units.joined * powers]
    first: IntArray = np.unique(np.concatenate(starts))
    if units.multiple > 1:
        first = np.union1d(first, -(-first // units.multiple) * units.multiple)
    return first[: np.searchsorted(first, most, side="right")]
