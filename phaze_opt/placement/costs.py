"""Seconds and bytes of every possible stage: all runs of consecutive layers at once.

Arrays are indexed ``[i, j]`` for the stage that holds the layers ``i … j − 1`` and have the shape
``(layers, layers + 1)``; entries with ``i ≥ j`` mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.network.term import Term
from phaze_opt.placement.chain_bytes import ChainBytes, chain_bytes, held_by_runs, receives
from phaze_opt.placement.memory import UNSHARDED, Shards
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.runs import sums_of_runs
from phaze_opt.training import OPTIMIZERS


@dataclass(frozen=True)
class StageCosts:
    """Costs of all stages at one tensor-parallel width over one kind of pipeline link.

    Attributes
    ----------
    forward_s, backward_s, recompute_s
        Work of one microbatch.
    accumulation_s
        Adding the gradients of a microbatch after the first to those before; 0 where there is one.
    receive_activation_s, receive_gradient_s
        One message per layer outside whose output, or gradient, the stage needs.
    transfer_bytes
        What each device sends in these messages.
    parameters
        Per device, tied ones once.
    resident_bytes, stash_bytes
        State and largest working set; what each microbatch in flight adds.
    in_flight_limit
        Most microbatches whose stash fits beside state and working set; −1 if not even those fit.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    accumulation_s: FloatArray
    receive_activation_s: FloatArray
    receive_gradient_s: FloatArray
    transfer_bytes: FloatArray
    parameters: FloatArray
    resident_bytes: FloatArray
    stash_bytes: FloatArray
    in_flight_limit: IntArray

    @property
    def layers(self) -> int:
        """Number of layers of the chain."""
        return len(self.forward_s)

    @cached_property
    def forward_work_s(self) -> FloatArray:
        """What a stage does in the forward of one microbatch."""
        return self.forward_s + self.receive_activation_s

    @cached_property
    def backward_work_s(self) -> FloatArray:
        """What a stage does in the backward of one microbatch."""
        work_s = self.backward_s + self.recompute_s + self.accumulation_s
        return work_s + self.receive_gradient_s

    @cached_property
    def load_s(self) -> FloatArray:
        """Both together."""
        return self.forward_work_s + self.backward_work_s


@dataclass(frozen=True, eq=False)
class WidthRuns:
    """Every run of layers at one tensor-parallel width: what messages and shards do not change.

    Attributes
    ----------
    problem
        Training options and memory.
    held
        What the layers hold and send.
    forward_s, backward_s, recompute_s
        Work of one microbatch.
    """

    problem: PlacementProblem
    held: ChainBytes
    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray


def width_runs(problem: PlacementProblem, tensor: int, held: ChainBytes | None = None) -> WidthRuns:
    """Add up the layers of one tensor-parallel width, of which it may be known what they hold."""
    return WidthRuns(
        problem,
        held or chain_bytes(problem, tensor),
        forward_s=sums_of_runs(problem.column(tensor, "forward_s")),
        backward_s=sums_of_runs(problem.column(tensor, "backward_s")),
        recompute_s=sums_of_runs(problem.column(tensor, "recompute_s")),
    )


def stage_costs(
    runs: WidthRuns,
    messages: Sequence[Term],
    shards: Shards = UNSHARDED,
    accumulates: bool = True,
) -> StageCosts:
    """Compute the costs of all stages.

    Parameters
    ----------
    runs
        The layers at one width.
    messages
        Ways to send a message between two neighbouring stages; it takes the fastest.
    shards
        What replicas share out.
    accumulates
        Whether there is more than one microbatch per batch.
    """
    problem = runs.problem
    optimizer = OPTIMIZERS[problem.training.optimizer]
    held = held_by_runs(runs.held, optimizer, shards, problem.hbm_usable_bytes)
    activation, gradient, transfer_bytes = receives(runs.held, tuple(messages))
    # Each replica adds up its own shard of the gradients.
    s_per_parameter = accumulates * problem.accumulation_s_per_parameter / shards.gradients
    return StageCosts(
        forward_s=runs.forward_s,
        backward_s=runs.backward_s,
        recompute_s=runs.recompute_s,
        accumulation_s=np.asarray(held.parameters * s_per_parameter, dtype=np.float64),
        receive_activation_s=activation,
        receive_gradient_s=gradient,
        transfer_bytes=transfer_bytes,
        parameters=held.parameters,
        resident_bytes=held.resident_bytes,
        stash_bytes=held.stash_bytes,
        in_flight_limit=held.in_flight_limit,
    )


def collective_table_s(terms: Sequence[Term], size_bytes: FloatArray) -> FloatArray:
    """Return the time of the cheapest algorithm for many sizes; nothing to send takes no time."""
    if not terms:
        return np.zeros_like(size_bytes)
    times_s = [term.seconds(size_bytes) for term in terms]
    return np.where(size_bytes > 0, np.minimum.reduce(times_s), 0.0)
