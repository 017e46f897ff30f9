"""What two exact CP-SAT models of one instance share: times, modes, and who runs before whom.

Every pair of operators that the precedences leave open has a Boolean for which of the two starts
first, and one in each direction for whether the one ends before the other starts. Times are the
instance's own units: nothing is rounded, and with the order decided the starts follow, so that the
solver's bounds need not creep unit by unit. What the models do with the resources differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from phaze_opt.scheduling.cp_sat import SolverAnswer, new_model
from phaze_opt.scheduling.instance import INTRA, SINGLE, Instance, Plan


class OrderModel:
    """The variables of one instance.

    Attributes
    ----------
    start, on_all, end
        Of every operator; whether it runs on all cores is 0 or 1 where it has one mode.
    starts_first, ends_first
        ``[one, other]``: whether an operator starts, or ends, before another starts. Literals; True
        or False where the precedences say so.
    """

    def __init__(self, instance: Instance, horizon: int) -> None:
        self.instance, self.horizon = instance, horizon
        self.model = new_model()
        self.length: list[list[int]] = instance.duration.tolist()
        self.demand, self.capacity = smallest_units(instance)
        self._add_times()
        self.exclude = {
            pair: all(self._exceed(pair[0], mode, pair[1]) for mode in instance.modes[pair[0]])
            for pair in self.pairs()
        }
        self.ancestors = [
            int.from_bytes(row.astype("<i8").tobytes(), "little") for row in instance.ancestors
        ]
        self.starts_first: dict[tuple[int, int], Any] = {}
        self.ends_first: dict[tuple[int, int], Any] = {}
        for first, other in combinations(range(instance.size), 2):
            self._add_pair(first, other)
        self._order_like_operators()
        self._move_lone_operators()

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Go through all pairs of two operators, in both directions."""
        n = self.instance.size
        return ((i, j) for i in range(n) for j in range(n) if i != j)

    def _add_times(self) -> None:
        """Add starts and modes; heads, tails and precedences limit the starts."""
        instance, model = self.instance, self.model
        least = [
            min(pair[mode] for mode in kept)
            for pair, kept in zip(self.length, instance.modes, strict=True)
        ]
        head, tail = [0] * instance.size, list(least)
        for i in range(instance.size):
            head[i] = max([head[j] + least[j] for j in instance.predecessors[i]], default=0)
        for i in range(instance.size - 1, -1, -1):
            tail[i] += max([tail[j] for j in instance.successors[i]], default=0)
        self.start: list[Any] = []
        self.on_all: list[Any] = []
        self.end: list[Any] = []
        for i, modes in enumerate(instance.modes):
            latest = max(head[i], self.horizon - tail[i])
            start = model.new_int_var(head[i], latest, f"start{i}")
            on_all = modes[0] if len(modes) == 1 else model.new_bool_var(f"on_all{i}")
            single, intra = self.length[i]
            self.start.append(start)
            self.on_all.append(on_all)
            self.end.append(start + single + (intra - single) * on_all)
            model.add(self.end[i] <= self.horizon)
            for before in instance.predecessors[i]:
                model.add(start >= self.end[before])

    def _exceed(self, first: int, mode: int, other: int) -> bool:
        """Whether an operator in a mode never runs beside another one."""
        own = self.demand[first][mode]
        for k in self.instance.modes[other]:
            both = map(sum, zip(own, self.demand[other][k], strict=True))
            if all(amount <= most for amount, most in zip(both, self.capacity, strict=True)):
                return False
        return True

    def _add_pair(self, earlier: int, other: int) -> None:
        """Add the Booleans of a pair; ``earlier`` is topologically before ``other``."""
        model, starts, ends = self.model, self.starts_first, self.ends_first
        if self.ancestors[other] >> earlier & 1:
            starts[earlier, other] = ends[earlier, other] = True
            starts[other, earlier] = ends[other, earlier] = False
            return
        first = model.new_bool_var(f"first{earlier}_{other}")
        for i, j, literal in ((earlier, other, first), (other, earlier, ~first)):
            starts[i, j] = literal
            model.add(self.start[i] <= self.start[j]).only_enforce_if(literal)
            if self.exclude[i, j]:
                ends[i, j] = literal
            else:
                ends[i, j] = model.new_bool_var(f"ended{i}_{j}")
                model.add_implication(ends[i, j], literal)
            model.add(self.end[i] <= self.start[j]).only_enforce_if(ends[i, j])

    def _order_like_operators(self) -> None:
        """Of operators that nothing tells apart, the one with the lower number starts first."""
        instance = self.instance
        kinds = [
            (self.length[i], self.demand[i], instance.modes[i], bytes(before), bytes(after))
            for i, (before, after) in enumerate(
                zip(instance.ancestors, instance.descendants, strict=True)
            )
        ]
        for first, other in combinations(range(instance.size), 2):
            if kinds[first] == kinds[other]:
                self.model.add_bool_and(self.starts_first[first, other])

    def _move_lone_operators(self) -> None:
        """Let operators run first that run alone and wait for none, the lowest number first.

        Moved to the front of any schedule, such an operator delays only those that ran before it,
        and none of them beyond its own old end. Those that none waits for run last in the same way.
        """
        instance = self.instance
        is_first = [not before for before in instance.predecessors]
        is_last = [
            not after and not first
            for after, first in zip(instance.successors, is_first, strict=True)
        ]
        for movable, to_front in ((is_first, True), (is_last, False)):
            alone = [can and self._alone(i) for i, can in enumerate(movable)]
            for i, j in self.pairs():
                before = self.ends_first[(i, j) if to_front else (j, i)]
                # Two that move keep the order of their numbers.
                both_move = (j < i) == to_front and alone[j]
                self.add_clause(negated(alone[i]), both_move, before)

    def _alone(self, operator: int) -> Any:
        """Return the literal that an operator excludes all others; True and False for ever."""
        n, modes = self.instance.size, self.instance.modes[operator]
        alone = [
            mode
            for mode in modes
            if all(self._exceed(operator, mode, j) for j in range(n) if j != operator)
        ]
        if not alone or len(alone) == len(modes):
            return bool(alone)
        return self.on_all[operator] if alone == [INTRA] else ~self.on_all[operator]

    def add_clause(self, *literals: Any) -> None:
        """Demand that one of some literals holds, which may also be True or False."""
        if not any(literal is True for literal in literals):
            self.model.add_bool_or([literal for literal in literals if literal is not False])

    def read(self, solved: SolverAnswer) -> Plan:
        """Read the plan."""
        start = tuple(map(solved.value, self.start))
        mode = tuple(mode if isinstance(mode, int) else solved.value(mode) for mode in self.on_all)
        lengths = [pair[number] for pair, number in zip(self.length, mode, strict=True)]
        return Plan(start, mode, max(map(sum, zip(start, lengths, strict=True))))


def smallest_units(
    instance: Instance,
) -> tuple[list[list[tuple[int, ...]]], tuple[int, ...]]:
    """Divide demands and capacity of each resource by their greatest common divisor."""
    demands, capacity = instance.demand.tolist(), instance.capacity.tolist()
    scale = [
        math.gcd(amount, *[pair[mode][r] for pair in demands for mode in (SINGLE, INTRA)])
        for r, amount in enumerate(capacity)
    ]
    demand = [
        [tuple(a // s for a, s in zip(amounts, scale, strict=True)) for amounts in pair]
        for pair in demands
    ]
    return demand, tuple(a // s for a, s in zip(capacity, scale, strict=True))


def negated(literal: Any) -> Any:
    """Negate a literal, or True or False."""
    return not literal if isinstance(literal, bool) else ~literal
