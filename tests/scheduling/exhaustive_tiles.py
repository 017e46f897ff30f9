"""The shortest plan with tiles by trying all orders, groups, tile counts and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, groupby, permutations, product
from math import inf

from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.scheduling.tiles import TilePrices, Tiling

Step = tuple[float, frozenset[int], int, tuple[int, ...], tuple[int, ...]]
"""Start, operators, number of tiles, passed tensors, held inputs."""


def shortest_tiled_s(residency: Residency, tiling: Tiling) -> float:
    """Find the least makespan, whole tensors first: every set of resident ones is tried."""
    every = subsets(range(len(residency.graph.tensors)))
    return min(_Tried(residency, tiling, frozenset(kept)).shortest_s() for kept in every)


def subsets(items: Iterator[int] | range | list[int]) -> Iterator[tuple[int, ...]]:
    """Yield all subsets."""
    own = list(items)
    return chain.from_iterable(combinations(own, size) for size in range(len(own) + 1))


class _Tried:
    """Some tensors are resident; what is left are steps, one after another."""

    def __init__(self, residency: Residency, tiling: Tiling, resident: frozenset[int]) -> None:
        self.residency, self.tiling, self.resident = residency, tiling, resident
        self.count = residency.graph.operators
        self.needs = [{a for a, b in residency.graph.edges if b == i} for i in range(self.count)]

    def shortest_s(self) -> float:
        """Run sets of operators, the smaller ones first."""
        best = {frozenset[int](): 0.0}
        for size in range(self.count):
            for done in [one for one in best if len(one) == size]:
                for step in subsets([i for i in range(self.count) if i not in done]):
                    if step and self.may_follow(frozenset(step), done):
                        end_s = best[done] + self.step_s(frozenset(step), done)
                        after = done | frozenset(step)
                        best[after] = min(best.get(after, inf), end_s)
        return best[frozenset(range(self.count))]

    def may_follow(self, step: frozenset[int], done: frozenset[int]) -> bool:
        """Whether operators may run together after others: alone, or handing on tiles."""
        if any(not self.needs[one] <= done | step for one in step):
            return False
        if len(step) == 1:
            return True
        inner = [edge for edge in self.residency.graph.edges if step.issuperset(edge)]
        joined = {one for edge in inner for one in edge}
        return joined == step and all(edge in self.tiling.graph.through for edge in inner)

    def step_s(self, step: frozenset[int], done: frozenset[int]) -> float:
        """Give the least time of a step over tile counts, passed tensors and held inputs."""
        if len(step) == 1:
            return self.run_s(step, done, 1, (), ())
        counts = set.intersection(*(set(self.tiling.graph.counts[one]) for one in step))
        tensors = self.residency.graph.tensors
        may_pass = [
            i
            for i, tensor in enumerate(tensors)
            if i not in self.resident and tensor.producer in step and step & set(tensor.readers)
        ]
        may_hold = [i for i, own in enumerate(self.tiling.graph.held) if own.operator in step]
        return min(
            (
                self.run_s(step, done, tiles, passed, held)
                for tiles in counts
                for passed in subsets(may_pass)
                for held in subsets(may_hold)
            ),
            default=inf,
        )

    def steps_s(self, steps: list[Step]) -> float:
        """Run steps one after another; infinite where something does not fit, or may not follow."""
        done: frozenset[int] = frozenset()
        taken_s = 0.0
        for _, members, tiles, passed, held in steps:
            if not self.may_follow(members, done):
                return inf
            taken_s += self.run_s(members, done, tiles, passed, held)
            done |= members
        return taken_s

    def run_s(
        self,
        step: frozenset[int],
        done: frozenset[int],
        tiles: int,
        passed: tuple[int, ...],
        held: tuple[int, ...],
    ) -> float:
        """Give the time of a step with everything chosen but levels."""
        residency, graph = self.residency, self.tiling.graph
        free = residency.glb_bytes
        for i, tensor in enumerate(residency.graph.tensors):
            touched = set(tensor.accesses)
            lives = touched & step or (touched & done and touched - done - step)
            if i in self.resident and lives:
                free -= tensor.bytes
            if i in passed:
                free -= 2 * -(-tensor.bytes // tiles)
        free -= sum(graph.held[i].bytes for i in held)
        taken_s = 0.0
        for one in step:
            of: Residency | TilePrices = residency
            row = one
            if tiles > 1:
                of, row = self.tiling.prices, graph.rows.index((one, tiles))
            taken_s += min(
                (
                    max(
                        float(of.other_s[row, level]),
                        max(
                            0.0,
                            float(of.hbm_bytes[row, level])
                            - self.saved(one, step, done, tiles, passed, held, level),
                        )
                        / residency.hbm_bytes_per_s,
                    )
                    for level in range(of.other_s.shape[1])
                    if of.working_bytes[row, level] <= free
                ),
                default=inf,
            ) + float(residency.overhead_s[one])
        return taken_s

    def saved(
        self,
        one: int,
        step: frozenset[int],
        done: frozenset[int],
        tiles: int,
        passed: tuple[int, ...],
        held: tuple[int, ...],
        level: int,
    ) -> float:
        """Give the bytes that an operator does not move."""
        residency, graph = self.residency, self.tiling.graph
        row = -1 if tiles == 1 else graph.rows.index((one, tiles))
        saved = 0.0
        for i, tensor in enumerate(residency.graph.tensors):
            if one not in tensor.accesses or (i not in self.resident and i not in passed):
                continue
            if one == tensor.producer and tensor.outlives:
                continue
            outside = set(tensor.readers) - step
            if one == tensor.producer and i in passed and outside:
                continue
            if tiles == 1:
                number = residency.graph.accesses.index((i, one))
                saved += float(residency.saved_bytes[number, level])
            else:
                number = graph.accesses.index((row, i))
                saved += float(self.tiling.prices.saved_bytes[number, level])
            readers_now = [reader for reader in graph_order(self.tiling) if reader in step]
            first = [reader for reader in readers_now if reader in tensor.readers][:1]
            if tensor.producer is None and not done & set(tensor.readers) and first == [one]:
                saved -= tensor.bytes
        for i in held:
            if graph.held[i].operator == one:
                number = graph.accesses.index((row, len(residency.graph.tensors) + i))
                own = float(self.tiling.prices.saved_bytes[number, level])
                saved += own - graph.held[i].moved_bytes
        return saved


def replayed_s(residency: Residency, tiling: Tiling, schedule: Schedule) -> float:
    """Run what a schedule says; infinite where something does not fit, or may not follow."""
    kept = schedule.residency
    assert kept is not None
    tried = _Tried(residency, tiling, frozenset(stay.tensor for stay in kept.tensors))
    steps: list[Step] = []
    for group in kept.groups:
        held = tuple(tiling.graph.held.index(one) for one in group.held)
        members = frozenset(group.operators)
        steps.append((group.start_s, members, group.tiles, group.passed, held))
    grouped = {one for _, members, *_ in steps for one in members}
    for one, entry in enumerate(schedule.operators):
        if one not in grouped:
            steps.append((entry.start_s, frozenset([one]), 1, (), ()))
    steps.sort(key=lambda step: step[0])
    # Steps without duration that start together may run in any order.
    ties = [permutations(own) for _, own in groupby(steps, key=lambda step: step[0])]
    return min(tried.steps_s([step for own in each for step in own]) for each in product(*ties))


def graph_order(tiling: Tiling) -> list[int]:
    """Order operators so that each comes after those it needs, of these always the next number.

    Operators without a predecessor come first; each then brings those that waited only for it.
    """
    graph = tiling.graph.graph
    waits = [sum(1 for _, b in graph.edges if b == i) for i in range(graph.operators)]
    order = [i for i in range(graph.operators) if waits[i] == 0]
    for one in order:
        for a, b in graph.edges:
            if a == one:
                waits[b] -= 1
                if waits[b] == 0:
                    order.append(b)
    return order
