"""What many numbers of replicas exchange at once: the same formulas as of one, over arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import CollectiveName, collective_terms
from phaze_opt.placement.chain_bytes import (
    ChainParameters,
    for_many_designs,
    parameters_of_runs,
)
from phaze_opt.placement.synchronisation import own_parameters


@for_many_designs
def synchronisations_s(
    parameters: ChainParameters,
    gradient_bytes: float,
    kind: CollectiveName,
    cluster: Cluster,
    tensor: int,
    data: bytes,
) -> tuple[FloatArray, FloatArray]:
    """Return the synchronisation of the first layers among some numbers of neighbouring replicas.

    Parameters
    ----------
    parameters, gradient_bytes
        The layers at one tensor-parallel width, and the gradient of a parameter.
    kind, cluster, tensor
        How the gradients are synchronised.
    data
        The numbers of replicas, as bytes of an array.

    Returns
    -------
    at_once_s, queued_s : (numbers of replicas, layers)
        Of the first 1, 2, … layers: all at once, and one after the other.
    """
    lines = _lines_by_data(kind, cluster, tensor, np.frombuffer(data, dtype=np.int64))
    (_, own), *_ = own_parameters(parameters)
    all_at_once = parameters_of_runs(parameters)[0][0, 1:]
    each_s = lines.seconds(own * gradient_bytes)
    return lines.seconds(all_at_once * gradient_bytes), np.cumsum(each_s, axis=1)


@dataclass(frozen=True, eq=False)
class _Lines:
    """Times of a collective by the number of replicas; arrays are ``(replicas, algorithms)``."""

    latency_s: FloatArray
    s_per_byte: FloatArray
    s_per_sqrt_byte: FloatArray

    def seconds(self, size_bytes: FloatArray) -> FloatArray:
        """Return the time of the cheapest algorithm, of shape ``(replicas, sizes)``."""
        least_s = np.full((len(self.latency_s), len(size_bytes)), np.inf)
        root_bytes = np.sqrt(size_bytes)
        columns = zip(self.latency_s.T, self.s_per_byte.T, self.s_per_sqrt_byte.T, strict=True)
        for latency_s, s_per_byte, s_per_sqrt_byte in columns:
            time_s = np.multiply.outer(s_per_byte, size_bytes)
            if s_per_sqrt_byte.any():
                time_s += np.multiply.outer(s_per_sqrt_byte, root_bytes)
            time_s += latency_s[:, np.newaxis]
            np.minimum(least_s, time_s, out=least_s)
        least_s[:, size_bytes == 0.0] = 0.0
        return least_s


def _lines_by_data(kind: CollectiveName, cluster: Cluster, stride: int, data: IntArray) -> _Lines:
    """Return the cost of every algorithm among some numbers of neighbouring replicas."""
    terms = [collective_terms(kind, replicas, cluster, stride) for replicas in data.tolist()]
    shape = len(data), max(len(row) for row in terms)
    latency_s, s_per_byte, s_per_sqrt_byte = (
        np.full(shape, np.inf),
        np.zeros(shape),
        np.zeros(shape),
    )
    for at, row in enumerate(terms):
        for column, term in enumerate(row):
            latency_s[at, column] = term.latency_s
            s_per_byte[at, column] = term.s_per_byte
            s_per_sqrt_byte[at, column] = term.s_per_sqrt_byte
    return _Lines(latency_s, s_per_byte, s_per_sqrt_byte)
