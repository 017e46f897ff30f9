"""What replicas exchange in every forward and backward: ZeRO 2 and 3, a bound from below.

Weights are gathered (ZeRO 3) and gradients are sent (ZeRO 2 and 3) layer by layer, one after the
other on one queue beside the compute: no pass is shorter than its queue. Nothing here depends on
the accelerator.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from phaze_opt.choices import CollectiveName
from phaze_opt.degrees import REPLICAS_INSIDE, RankOrder
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import as_costly
from phaze_opt.placement.candidates import CandidateGrid
from phaze_opt.placement.chain_bytes import ChainParameters, not_elsewhere
from phaze_opt.placement.exchanges import cheapest_lines_s, lines_of, padded
from phaze_opt.placement.synchronisation import (
    own_parameters,
    replica_terms,
    synchronisation_kind,
    with_same_experts,
)
from phaze_opt.training import Training

Groups = tuple[tuple[int, int, int, int], ...]
"""Replicas and how they are apart; see `phaze_opt.placement.synchronisation.ReplicaGroup`."""


def own_of_layers(parameters: ChainParameters) -> tuple[FloatArray, FloatArray]:
    """Return the parameters of each layer that replicas exchange, and those of routed experts.

    Both have the shape ``(layers,)``. Of experts that a replica holds more than once at least its
    share is stepped and sent.
    """
    (_, own), *_ = own_parameters(parameters)
    twice = not_elsewhere(parameters)
    return own + twice, np.array(parameters.routed, dtype=np.float64) + twice


def how_far_apart(
    tensor: int, pipeline: IntArray, data: IntArray, is_inside: bool | BoolArray, split: IntArray
) -> IntArray:
    """Return the rows of `Groups` of some candidates: (candidates, 4).

    Parameters
    ----------
    tensor, pipeline, data
        Degrees.
    is_inside
        Whether replicas are next to each other.
    split
        Replicas that are, where the others are further apart; else 0.
    """
    distance = tensor * np.where((split > 0) | is_inside, 1, pipeline)
    return np.column_stack([data, distance, split, tensor * split * pipeline])


def collectives_of_groups(
    kind: CollectiveName, cluster: Cluster, training: Training, tensor: int, groups: Groups
) -> list[list[FloatArray]]:
    """Return a collective of all replicas, and of those with the same experts if not all have.

    The algorithms of every group, see `phaze_opt.placement.exchanges.lines_of`.
    """
    kind = as_costly(kind)
    of_all = _lines_of_groups(kind, cluster, groups)
    if not training.holds_experts_apart(tensor):
        return [of_all]
    same = tuple([with_same_experts(training, tensor, *group) for group in groups])
    return [of_all, _lines_of_groups(kind, cluster, same)]


def exchanged_s(
    cluster: Cluster,
    training: Training,
    tensor: int,
    each: tuple[FloatArray, FloatArray],
    groups: Groups,
) -> FloatArray:
    """Return the seconds in which replicas exchange what they do in every pass of each layer.

    Parameters
    ----------
    cluster, training, tensor
        Of the candidates.
    each
        What the layers exchange, as `own_of_layers` returns it.
    groups
        The replicas.

    Returns
    -------
    exchanged_s : (groups, 2, layers)
        In the forward, and in the backward; 0 before ZeRO 2.
    """
    passes = np.zeros((len(groups), 2, len(each[0])))
    given = cluster, training, tensor, groups
    if training.zero == 3:
        weights = collectives_of_groups("all_gather", *given)
        passes[:] = _of_layers_s(weights, *each, float(training.state.gathered_bytes))[:, None]
    if training.zero >= 2:
        gradients = collectives_of_groups(synchronisation_kind(training.zero), *given)
        passes[:, 1] += _of_layers_s(gradients, *each, float(training.reduced_bytes))
    return passes


def exchanged_by_classes_s(
    grid: CandidateGrid, cluster: Cluster, training: Training, parameters: ChainParameters
) -> FloatArray:
    """Return what the replicas of every class of a grid exchange in a forward and backward.

    Parameters
    ----------
    grid
        The candidates.
    cluster, training
        Of which it is.
    parameters
        What the layers hold.

    Returns
    -------
    exchanged_s : (classes,)
        Seconds of all layers together.
    """
    own, routed = own_of_layers(parameters)
    every = grid.pipeline.tobytes(), grid.data.tobytes(), own.tobytes(), routed.tobytes()
    return _of_classes_s(grid.tensor, grid.order, grid.inside, cluster, training, *every)


@lru_cache(maxsize=128)
def _of_classes_s(
    tensor: int,
    order: RankOrder,
    inside: int,
    cluster: Cluster,
    training: Training,
    pipeline: bytes,
    data: bytes,
    own: bytes,
    routed: bytes,
) -> FloatArray:
    """Do as `exchanged_by_classes_s`: grids come and go with designs, these numbers stay."""
    stages, replicas = (np.frombuffer(each, dtype=np.int64) for each in (pipeline, data))
    split = np.full_like(replicas, inside)
    apart = how_far_apart(tensor, stages, replicas, order == REPLICAS_INSIDE, split)
    first, which = distinct_rows(apart)
    groups = tuple([tuple(row) for row in apart[first].tolist()])
    # Many layers hold as much as others.
    layers = np.column_stack([np.frombuffer(own), np.frombuffer(routed)])
    kinds, counts = np.unique(layers, axis=0, return_counts=True)
    passes_s = exchanged_s(cluster, training, tensor, (kinds[:, 0], kinds[:, 1]), groups)
    exchanged = (passes_s * counts).sum(axis=(1, 2))[which]
    return np.where(replicas > 1, exchanged, 0.0)


def _of_layers_s(
    collectives: list[list[FloatArray]], own: FloatArray, routed: FloatArray, bytes_each: float
) -> FloatArray:
    """Return the collective of every group and layer, routed experts apart if shared out."""
    if len(collectives) == 1:
        return lines_s(collectives[0], own * bytes_each)
    of_all, of_same = collectives
    own_s = lines_s(of_all, (own - routed) * bytes_each)
    return own_s + lines_s(of_same, routed * bytes_each)


@lru_cache(maxsize=64)
def _lines_of_groups(kind: CollectiveName, cluster: Cluster, groups: Groups) -> list[FloatArray]:
    """Return the algorithms of a collective of some groups of replicas."""
    return [lines_of(replica_terms(kind, *group, cluster)) for group in groups]


def lines_s(groups: list[FloatArray], sizes: FloatArray) -> FloatArray:
    """Return the collective of some groups and sizes in bytes: (groups, sizes), in seconds.

    A group of one exchanges nothing.
    """
    times_s = cheapest_lines_s(padded(groups), sizes)
    times_s[[len(lines) == 0 for lines in groups]] = 0.0
    return times_s
