"""Seconds and bytes of every possible stage: all runs of consecutive layers at once.

Arrays are indexed ``[i, j]`` for the stage that holds the layers ``i … j − 1`` and have the shape
``(layers, layers + 1)``; entries with ``i ≥ j`` mean nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.network.term import Term
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.paired import PARTS
from phaze_opt.placement.chain_bytes import (
    ChainBytes,
    HeldBytes,
    Received,
    held_by_runs,
    receives,
    transfer_bytes,
)
from phaze_opt.placement.memory import UNSHARDED, Shards
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.runs import loads_of_runs, sums_of_runs


@dataclass(frozen=True, eq=False)
class DegreeRuns:
    """Every run of layers at one tensor degree: what messages and shards do not change.

    Attributes
    ----------
    problem, tensor
        The layers, and the tensor degree.
    held
        What the layers hold and send.
    paired
        Share of the microbatches that run beside another one (`phaze_opt.passes.paired`); ``None``
        for the least that any share takes.
    """

    problem: PlacementProblem
    tensor: int
    held: ChainBytes
    paired: float | None = 0.0

    def column(self, name: str) -> FloatArray:
        """Return an attribute of all layers, on average over the microbatches."""
        if self.paired == 0.0:
            return self.problem.column(self.tensor, name)
        if name not in self._columns:
            self._columns[name] = self._paired(name)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, FloatArray]:
        """What `column` has returned."""
        return {}

    def _paired(self, name: str) -> FloatArray:
        """Return an attribute of layers of which some share of the microbatches are in pairs."""
        own_s, pass_name = self.problem.column(self.tensor, name), name.removesuffix(".seconds")
        if pass_name == name:
            return own_s
        pair_s = self.problem.paired_s(self.tensor)
        part_s = PARTS[self.problem.training.recompute][pass_name] * pair_s
        if self.paired is None:
            mean_s = np.minimum(own_s, part_s)
        else:
            mean_s = (1.0 - self.paired) * own_s + self.paired * part_s
        return np.where(pair_s > 0.0, mean_s, own_s)

    def sums(self, name: str) -> FloatArray:
        """Add up an attribute of the layers of every run."""
        return sums_of_runs(self.column(name))

    def sum(self, name: str, run: tuple[int, int]) -> float:
        """Return the entry of one run, without the others: added up from its first layer."""
        added: float = reduce(operator.add, self.column(name)[slice(*run)].tolist())
        return added


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Costs of all stages at one tensor degree over one kind of pipeline link.

    Attributes
    ----------
    runs
        The layers: work of one microbatch.
    held
        Parameters, state and stash.
    messages
        Ways to send a message from one stage to the next; it takes the fastest.
    accumulation_s_per_parameter
        Adding the gradients of a microbatch after the first to those before, as far as products
        do not; 0 where there is one.
    """

    runs: DegreeRuns
    held: HeldBytes
    messages: tuple[Term, ...]
    accumulation_s_per_parameter: float

    @property
    def layers(self) -> int:
        """Number of layers of the chain."""
        return len(self.held.parameters)

    @cached_property
    def received(self) -> Received:
        """Messages from other stages."""
        return receives(self.runs.held, self.messages)

    @cached_property
    def transfer_bytes(self) -> FloatArray:
        """What each device sends in the messages to a stage."""
        return transfer_bytes(self.runs.held, self.messages)

    def accumulation_s(self, where: tuple[IntArray, IntArray]) -> FloatArray:
        """Return the adding up of the gradients of a microbatch after the first, of some stages."""
        return self.held.added[where] * self.accumulation_s_per_parameter

    @cached_property
    def forward_work_s(self) -> FloatArray:
        """What a stage does in the forward of one microbatch."""
        work_s = self.runs.sums("forward.seconds")
        work_s += self.received.activation_s
        return work_s

    @cached_property
    def backward_work_s(self) -> FloatArray:
        """What a stage does in the backward of one microbatch."""
        work_s = self.runs.sums("backward.seconds")
        work_s += self.runs.sums("recompute.seconds")
        work_s += self.held.added * self.accumulation_s_per_parameter
        work_s += self.received.gradient_s
        return work_s

    @cached_property
    def load_s(self) -> FloatArray:
        """Both together, without the tables that they are made of."""
        column, received = self.runs.column, self.received
        return loads_of_runs(
            column("forward.seconds"),
            column("backward.seconds"),
            column("recompute.seconds"),
            self.held.added,
            self.accumulation_s_per_parameter,
            received.activation_s,
            received.gradient_s,
        )


def stage_costs(
    runs: DegreeRuns,
    messages: Sequence[Term],
    shards: Shards = UNSHARDED,
    accumulates: bool = True,
) -> StageCosts:
    """Compute the costs of all stages.

    Parameters
    ----------
    runs
        The layers at one tensor degree.
    messages
        Ways to send a message between two neighbouring stages; it takes the fastest.
    shards
        What replicas share out.
    accumulates
        Whether there is more than one microbatch per batch.
    """
    problem = runs.problem
    optimizer = problem.training.state
    return StageCosts(
        runs,
        held_by_runs(runs.held, optimizer, shards, problem.hbm_usable_bytes),
        tuple(messages),
        # Each replica adds up its own shard of the gradients.
        accumulates * problem.accumulation_s_per_parameter / shards.gradients,
    )


def collective_table_s(terms: Sequence[Term], size_bytes: FloatArray) -> FloatArray:
    """Return the time of the cheapest algorithm for many sizes; nothing to send takes no time."""
    if not terms:
        return np.zeros_like(size_bytes)
    times_s = [term.seconds(size_bytes) for term in terms]
    return np.where(size_bytes > 0, np.minimum.reduce(times_s), 0.0)
