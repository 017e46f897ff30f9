"""The points that are likely to be the best, where bounds say little about their order.

Under a limit of the power the best bounds are of chips that take just as much of it, and most of
these take a little more. A guess orders the points; the first ones by the guess are then looked at:
evaluated, without a trial. What is found decides what is tried first, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from phaze_opt.study.samplers.grid import Coordinates
from phaze_opt.study.samplers.replay import Cost

Guess = Callable[[Sequence[Mapping[str, Any]], int], Sequence[Cost]]
"""Guesses the costs of points by their parameters, with some care; it need not bound them."""

Look = Callable[[Mapping[str, Any]], Cost]
"""Evaluates a point by its parameters, and returns its cost; costs of feasible ones begin with 0.
"""

MOST_CARE = 4
"""The most careful guess."""

GUESSED, MOST_GUESSED = 1024, 8192
"""Number of points, in the order of their least costs, whose costs are guessed; up to the largest
number while too few guesses are feasible."""

LOOKED_AT, MOST_LOOKED_AT = 16, 256
"""Number of points that are looked at together, and at most, by one process."""

Points = list[tuple[Coordinates, Mapping[str, Any]]]


class LikelyFirst:
    """Orders points by a guess of their costs, and by the costs of those that it looked at.

    Parameters
    ----------
    guess
        Guesses the costs; the more carefully, the more of the points that were looked at failed.
    look
        Evaluates a point.
    """

    def __init__(self, guess: Guess, look: Look) -> None:
        self._guess, self._look = guess, look
        self._care = 0
        self._guesses: dict[tuple[Coordinates, int], Cost] = {}
        self._known: dict[Coordinates, Cost] = {}

    def first(
        self,
        points: Iterable[tuple[Coordinates, Mapping[str, Any]]],
        number: int,
        best: Cost | None,
    ) -> list[Mapping[str, Any]]:
        """Return the parameters of the likeliest points.

        Parameters
        ----------
        points
            Points without a trial, in the order of their least costs.
        number
            Largest number of points to return.
        best
            The lowest cost of a trial.
        """
        likely = self._guessed(points, number)
        while len(self._known) < MOST_LOOKED_AT:
            new = [pair for pair in likely if pair[0] not in self._known][:LOOKED_AT]
            if not new:
                break
            for point, params in new:
                self._known[point] = self._look(params)
            if self._care == MOST_CARE or any(self._known[point][0] == 0 for point, _ in new):
                break
            self._care += 1
            likely = self._guessed((pair for pair in likely), number)
        likely.sort(key=lambda pair: self._key(pair[0], best))
        return [params for _, params in likely[:number]]

    def _guessed(
        self, points: Iterable[tuple[Coordinates, Mapping[str, Any]]], number: int
    ) -> Points:
        """Return the first points, sorted by their guessed costs."""
        rest, care, guesses = iter(points), self._care, self._guesses
        likely: Points = []
        while len(likely) < MOST_GUESSED:
            some = list(islice(rest, GUESSED))
            new = [pair for pair in some if (pair[0], care) not in guesses]
            costs = self._guess([params for _, params in new], care)
            guesses.update(
                ((point, care), cost) for (point, _), cost in zip(new, costs, strict=True)
            )
            likely += some
            feasible = sum(guesses[point, care][0] == 0 for point, _ in likely)
            if feasible >= number or len(some) < GUESSED:
                break
        likely.sort(key=lambda pair: guesses[pair[0], care])
        return likely

    def _key(self, point: Coordinates, best: Cost | None) -> tuple[int, Cost]:
        """Sort key: points known to be better than the best, points not looked at, known others."""
        known = self._known.get(point)
        if known is None:
            return 1, self._guesses[point, self._care]
        is_better = known[0] == 0 and (best is None or known < best)
        return 0 if is_better else 2, known
