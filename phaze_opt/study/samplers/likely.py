"""The points that are likely to be the best, where bounds say little about their order.

Under a limit of the power the best bounds are of chips that take just as much of it, and most of
these take a little more. A guess orders the points; the first ones by the guess are then looked at:
evaluated, without a trial. What is found decides what is tried first, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from phaze_opt.on_demand import cached_property
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

LOOKED_AT, ROUNDS = 16, 6
"""Number of points that are looked at together; and how often, apart from the times at which all of
them were infeasible."""

Points = Iterable[tuple[Coordinates, Mapping[str, Any]]]


class LikelyFirst:
    """Orders points by a guess of their costs, and by the costs of those that it looked at.

    Which points it looks at follows from the study alone, so that the order of a stopped study that
    goes on is that of one without a stop.

    Parameters
    ----------
    points
        All points, in the order of their least costs.
    guess
        Guesses the costs, the more carefully the more often all points were infeasible.
    look
        Evaluates a point.
    """

    def __init__(self, points: Callable[[], Points], guess: Guess, look: Look) -> None:
        self._points, self._guess, self._look = points, guess, look
        self._guesses: dict[tuple[Coordinates, int], Cost] = {}

    def first(self, left: Points, number: int, best: Cost | None) -> list[Mapping[str, Any]]:
        """Return the parameters of the likeliest points.

        Parameters
        ----------
        left
            Points without a trial, in the order of their least costs.
        number
            Largest number of points to return.
        best
            The lowest cost of a trial.
        """
        care, known = self._looked_at
        likely = self._guessed(left, care, number)

        def key(pair: tuple[Coordinates, Mapping[str, Any]]) -> tuple[int, Cost]:
            """Let points that are not looked at come after better ones, and before others."""
            point, _ = pair
            cost = known.get(point)
            if cost is None:
                return 1, self._guesses[point, care]
            is_better = cost[0] == 0 and (best is None or cost < best)
            return 0 if is_better else 2, cost

        return [params for _, params in sorted(likely, key=key)[:number]]

    @cached_property
    def _looked_at(self) -> tuple[int, Mapping[Coordinates, Cost]]:
        """How careful a guess has to be, and the costs of the points that were looked at."""
        care, known = 0, dict[Coordinates, Cost]()
        likely = self._guessed(self._points(), care, LOOKED_AT)
        rounds = 0
        while rounds < ROUNDS:
            new = [pair for pair in likely if pair[0] not in known][:LOOKED_AT]
            if not new:
                break
            costs = {point: self._look(params) for point, params in new}
            known.update(costs)
            if care < MOST_CARE and all(cost[0] != 0 for cost in costs.values()):
                care += 1
                likely = self._guessed(self._points(), care, LOOKED_AT)
            else:
                rounds += 1
        return care, known

    def _guessed(
        self, points: Points, care: int, number: int
    ) -> list[tuple[Coordinates, Mapping[str, Any]]]:
        """Return the first points, sorted by their guessed costs."""
        rest, guesses = iter(points), self._guesses
        likely: list[tuple[Coordinates, Mapping[str, Any]]] = []
        while len(likely) < MOST_GUESSED:
            some = list(islice(rest, GUESSED))
            new = [pair for pair in some if (pair[0], care) not in guesses]
            costs = self._guess([params for _, params in new], care)
            keys = [(point, care) for point, _ in new]
            guesses.update(zip(keys, costs, strict=True))
            likely += some
            feasible = sum(guesses[point, care][0] == 0 for point, _ in likely)
            if feasible >= number or len(some) < GUESSED:
                break
        return sorted(likely, key=lambda pair: guesses[pair[0], care])
