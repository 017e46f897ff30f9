"""A low-discrepancy sequence: points that fill the space more evenly than random points."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats.qmc import Sobol

from phaze_opt.study.samplers.grid import Grid


class QuasiRandom:
    """Scrambled Sobol' points (Owen, J. Complexity 1998), one per ticket.

    Ticket ``k`` takes point ``k`` of the sequence, whatever a process has drawn before: two workers
    never take the same point. (Optuna's own sampler counts in the database, where two workers can
    read equal counts.) Two points of the sequence can still fall on one point of a coarse grid.
    """

    def __init__(self, grid: Grid, seed: int) -> None:
        self._grid = grid
        self._sequence = Sobol(len(grid.sizes), scramble=True, rng=np.random.default_rng(seed))

    def propose(self, ticket: int) -> dict[str, Any]:
        """Return the point of a ticket."""
        sequence = self._sequence.reset()
        if ticket > 0:  # fast_forward(0) raises
            sequence = sequence.fast_forward(ticket)
        (shares,) = sequence.random(1)
        return self._grid.params(tuple((shares * self._grid.sizes).astype(int).tolist()))
