"""A lower bound on the makespan from the sets of operators that may run together.

Give every operator in each mode a price per unit of time, such that no set of operators that may
run at one time costs more than 1; an operator that runs alone costs 1. Then no schedule is shorter
than the sum over operators of the least duration × price of their modes. Mixtures of resources and
chains (`bounds.mixed_bound`) are such prices. The best ones give more, because parts of operators
do not fill a resource, nor do operators that precede each other. They are the solution of a linear
program with one row for every set, whose rows are found one by one (A. Mingozzi et al., Management
Science 44, 1998). Any prices give a bound, once they are divided by what the most expensive set
costs; the linear program need not be solved exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.scheduling.bounds import mixed_bound, runs_alone
from phaze_opt.scheduling.instance import WORD, Instance, in_set
from phaze_opt.scheduling.price_kernel import heaviest_set

STEPS_PER_EFFORT = 9
"""Steps of the searches for sets per state of the exact search, about twice its time."""

_INWARD = 0.6
"""Weight of the best prices known in the prices tried next; the linear program's have the rest."""

_ENOUGH = 1.001
"""The search ends where the linear program promises no more than so many times the bound."""

_VIOLATED = 1.0 + 1e-6
"""A set that costs more is none that the linear program knows."""

_MOST_NODES, _MOST_GIVEN_UP = 200_000, 5
"""Steps of one search for a set; and so many that give up one after another end the search."""

_ROUND_STEPS = 5_000
"""Steps that stand for the linear program of one round."""


def set_bound(instance: Instance, effort: int) -> tuple[int, FloatArray]:
    """Bound the makespan from below.

    Parameters
    ----------
    instance
        The operators to schedule.
    effort
        In states of the exact search; at most it takes about twice as long as they do.

    Returns
    -------
    The bound in time units, and the prices: (operators, 2).
    """
    known, rate = mixed_bound(instance)
    alone = runs_alone(instance.allowed, instance.demand, instance.capacity)
    prices = _Prices(instance, alone)
    best, steps, given_up, inward = prices.bound(rate), STEPS_PER_EFFORT * effort, 0, _INWARD
    while steps > 0 and given_up < _MOST_GIVEN_UP:
        promise, dear = prices.solve()
        if promise <= best * _ENOUGH:
            break
        tried = inward * rate + (1.0 - inward) * dear
        cost, nodes, added = prices.add_sets(tried, dear)
        steps -= nodes + _ROUND_STEPS
        given_up = given_up + 1 if nodes > _MOST_NODES else 0
        value = prices.bound(tried / cost)
        if value > best:
            best, rate = value, tried / cost
        if not added and not inward:
            break
        # Where all sets found are known, only the linear program's own prices lead to others.
        inward = _INWARD if added else 0.0
    # One unit covers the rounding of the floating-point sums.
    return max(known, int(best * prices.total) - 1), np.where(alone, 1.0, rate)


class _Prices:
    """The linear program of the prices, with the sets found so far.

    Attributes
    ----------
    total
        Time units that stand for 1 in the linear program.
    """

    def __init__(self, instance: Instance, alone: BoolArray) -> None:
        from ortools.linear_solver import pywraplp

        self.instance, self.alone = instance, alone
        self.total = float(instance.duration.min(axis=1).sum())
        self.length: FloatArray = instance.duration / self.total
        self.share: FloatArray = instance.demand / instance.capacity
        self.chain = _chains(instance)
        self.related = instance.ancestors | instance.descendants
        for operator, row in enumerate(self.related):
            row[operator // WORD] |= np.int64(1) << np.int64(operator % WORD)
        self.resource_prices = np.zeros(len(instance.capacity))
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        together = np.argwhere(instance.allowed & ~alone).tolist()
        self.price = {2 * i + mode: self.solver.NumVar(0.0, 1.0, "") for i, mode in together}
        costs = [self.solver.NumVar(0.0, 1.0, "") for _ in range(instance.size)]
        for i, mode in np.argwhere(instance.allowed).tolist():
            self.solver.Add(costs[i] <= self.length[i, mode] * self.price.get(2 * i + mode, 1.0))
        self.solver.Maximize(sum(costs))

    def solve(self) -> tuple[float, FloatArray]:
        """Return the best value under the sets found so far, and its prices (operators, 2)."""
        self.solver.Solve()
        rate = np.zeros(self.length.shape)
        for code, variable in self.price.items():
            rate[code >> 1, code & 1] = max(0.0, variable.solution_value())
        return float(self.solver.Objective().Value()), rate

    def add_sets(self, rate: FloatArray, dear: FloatArray) -> tuple[float, int, int]:
        """Find the most expensive set, and others that cost nearly as much.

        Parameters
        ----------
        rate
            The prices: (operators, 2).
        dear
            Those of the linear program, which takes the sets that cost more than 1 at these.

        Returns
        -------
        An upper bound on the price of the most expensive set; the steps done; and how many sets
        the linear program took.
        """
        chain = self.chain
        codes = [code for code in self.price if rate[code >> 1, code & 1] > 0.0]
        codes.sort(key=lambda code: (chain[code >> 1], -rate[code >> 1, code & 1], code))
        cost, found, nodes = heaviest_set(
            np.array(codes, dtype=np.int64),
            rate,
            self.instance.demand,
            self.instance.capacity,
            self.share,
            self.related,
            chain,
            self.resource_prices,
            _MOST_NODES,
        )
        sets = {tuple(sorted(row[row >= 0].tolist())) for row in found}
        new = [row for row in sorted(sets) if dear.flat[list(row)].sum() > _VIOLATED]
        for row in new:
            self.solver.Add(sum(self.price[code] for code in row) <= 1.0)
        return max(cost, 1e-9), nodes, len(new)

    def bound(self, rate: FloatArray) -> float:
        """Return the bound that prices give, as a part of `total`."""
        each = np.where(self.alone, 1.0, rate) * self.length
        return float(np.where(self.instance.allowed, each, np.inf).min(axis=1).sum())


def _chains(instance: Instance) -> IntArray:
    """Part the operators into a few chains; return the number of the chain of each."""
    chain, ends = np.empty(instance.size, dtype=np.int64), list[int]()
    for operator in range(instance.size):
        before = instance.ancestors[operator]
        place = next((k for k, end in enumerate(ends) if in_set(before, end)), len(ends))
        ends[place : place + 1] = [operator]
        chain[operator] = place
    return chain
