"""Every point of the grid once, in an order that the seed shuffles."""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Any

from phaze_opt.study.samplers.grid import Grid

_ROUNDS = 4
"""Rounds of a Feistel network that make a permutation pseudo-random (Luby and Rackoff, 1988)."""

_logger = logging.getLogger(__name__)


class BruteForce:
    """The points of a grid, each once, by the number of the ticket.

    Ticket ``k`` takes the point of place ``k`` modulo the number of points in a shuffled order, so
    that workers share the points without communication. With ``b`` baselines, the grid is complete
    after ``points + b`` tickets: the last tickets take the places of the tickets of baselines. Then
    the order begins again, with a warning.
    """

    def __init__(self, grid: Grid, seed: int) -> None:
        self._grid = grid
        self._seed = seed
        self._warned = False

    def propose(self, ticket: int) -> dict[str, Any]:
        """Return the point of a ticket."""
        points = self._grid.points
        if ticket >= points and not self._warned:
            self._warned = True
            _logger.warning(
                "Trial %d: brute-force has passed all %d points of the space and begins again; "
                "only those in the places of baselines are new.",
                ticket,
                points,
            )
        return self._grid.params(self._grid.point(permuted(ticket % points, points, self._seed)))


def permuted(index: int, number: int, seed: int) -> int:
    """Return the place of an index in a pseudo-random permutation of ``range(number)``.

    A Feistel network permutes numbers with an even count of bits; a number outside the range passes
    it again until it is inside (cycle walking: Black and Rogaway, CT-RSA 2002).
    """
    half = max(1, ((number - 1).bit_length() + 1) // 2)
    while True:
        left, right = index >> half, index & ((1 << half) - 1)
        for key in range(_ROUNDS):
            left, right = right, left ^ _mixed(right, seed, key, half)
        index = left << half | right
        if index < number:
            return index


def _mixed(value: int, seed: int, key: int, bits: int) -> int:
    """Hash a number to a number of ``bits`` bits."""
    digest = blake2b(f"{seed} {key} {value}".encode(), digest_size=min(64, bits // 8 + 1)).digest()
    return int.from_bytes(digest, "big") & ((1 << bits) - 1)
