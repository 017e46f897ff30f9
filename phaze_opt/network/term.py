"""The cost of one way to communicate: seconds and bytes by the size of what is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.network.cluster import Cluster

Sizes = TypeVar("Sizes", float, FloatArray)


class Term(NamedTuple):
    """One algorithm: its time, and what it sends.

    Attributes
    ----------
    algorithm
        Its name; ``"none"`` for a single device.
    latency_s, s_per_byte, s_per_sqrt_byte
        The time is ``latency_s + size_bytes · s_per_byte + √size_bytes · s_per_sqrt_byte``.
    sent_per_byte
        Bytes that a device sends over each level of the cluster, innermost first, per byte of the
        tensor: the average over the devices of the group. What a device of a torus passes on for
        others is not counted.
    """

    algorithm: str
    latency_s: float
    s_per_byte: float
    sent_per_byte: tuple[float, ...]
    s_per_sqrt_byte: float = 0.0

    def seconds(self, size_bytes: Sizes) -> Sizes:
        """Return the time for whole (unsharded) tensors of these sizes.

        A size has the same time in an array as alone, to the last bit.
        """
        line_s = self.latency_s + size_bytes * self.s_per_byte
        if self.s_per_sqrt_byte == 0.0:
            return line_s
        if isinstance(size_bytes, np.ndarray):
            return line_s + np.sqrt(size_bytes) * self.s_per_sqrt_byte
        return line_s + math.sqrt(size_bytes) * self.s_per_sqrt_byte

    @property
    def all_sent_per_byte(self) -> float:
        """Bytes that a device sends over all levels together, per byte of the tensor."""
        return sum(self.sent_per_byte)


def cheapest(terms: Iterable[Term], size_bytes: float) -> Term:
    """Return the algorithm with the least time, the first of equal ones."""
    return min(terms, key=lambda term: term.seconds(size_bytes))


def one_after_the_other(first: Term, second: Term, share: float) -> Term:
    """Return the cost of one way to communicate, and then another with a share of the tensor."""
    return Term(
        f"{first.algorithm}, {second.algorithm}",
        first.latency_s + second.latency_s,
        first.s_per_byte + share * second.s_per_byte,
        tuple(
            [
                own + share * other
                for own, other in zip(first.sent_per_byte, second.sent_per_byte, strict=True)
            ]
        ),
        first.s_per_sqrt_byte + math.sqrt(share) * second.s_per_sqrt_byte,
    )


def nothing_sent(cluster: Cluster) -> Term:
    """Return the cost of a group of one device."""
    return Term("none", 0.0, 0.0, (0.0,) * len(cluster.levels))
