"""Seconds and bytes of every possible stage: all runs of consecutive layers at once.

Arrays are indexed ``[i, j]`` for the stage that holds the layers ``i … j − 1`` and have the shape
``(layers, layers + 1)``; entries with ``i ≥ j`` mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.network.term import Term, cheapest
from phaze_opt.placement.memory import UNSHARDED, Shards
from phaze_opt.placement.placement_problem import LayerCost, PlacementProblem
from phaze_opt.placement.runs import maxima_of_runs, receives_of_runs, sums_of_runs
from phaze_opt.training import OPTIMIZERS, Optimizer

_UNLIMITED = 2**31
"""More microbatches in flight than any batch has."""

_MOST_LAYERS = 256
"""Tables of longer chains are not kept: they take megabytes each."""

F = TypeVar("F", bound=Callable[..., Any])


def for_many_designs(function: F) -> F:
    """Keep the last results of a function of the layers, its first argument, unless they are many.

    The designs of a study differ in seconds; most of the tables of the placement do not.
    """
    kept = lru_cache(maxsize=32)(function)

    @wraps(function)
    def find(layers: Sequence[object], *others: object) -> object:
        return (function if len(layers) > _MOST_LAYERS else kept)(layers, *others)

    return cast(F, find)


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
    shared_parameters
        Those that a layer outside the stage holds too.
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
    parameters: IntArray
    shared_parameters: IntArray
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


def stage_costs(
    problem: PlacementProblem,
    tensor: int,
    messages: Sequence[Term],
    shards: Shards = UNSHARDED,
    accumulates: bool = True,
) -> StageCosts:
    """Compute the costs of all stages.

    Parameters
    ----------
    problem
        The layers, the training options and the memory.
    tensor
        Tensor-parallel width.
    messages
        Ways to send a message between two neighbouring stages; it takes the fastest.
    shards
        What replicas share out.
    accumulates
        Whether there is more than one microbatch per batch.
    """
    layers = problem.layers[tensor]
    held = _held_by_runs(
        tuple((each.parameters, each.tied_parameters) for each in layers),
        tuple((each.stash_bytes, each.transient_bytes) for each in layers),
        OPTIMIZERS[problem.training.optimizer],
        shards,
        problem.hbm_usable_bytes,
    )
    outputs = tuple(layer.output_bytes for layer in layers)
    activation, gradient, transfer_bytes = _receives(outputs, problem.edges, tuple(messages))
    # Each replica adds up its own shard of the gradients.
    s_per_parameter = accumulates * problem.accumulation_s_per_parameter / shards.gradients
    return StageCosts(
        forward_s=_sums([layer.forward_s for layer in layers]),
        backward_s=_sums([layer.backward_s for layer in layers]),
        recompute_s=_sums([layer.recompute_s for layer in layers]),
        accumulation_s=np.asarray(held.parameters * s_per_parameter, dtype=np.float64),
        receive_activation_s=activation,
        receive_gradient_s=gradient,
        transfer_bytes=transfer_bytes,
        parameters=held.parameters,
        shared_parameters=held.shared_parameters,
        resident_bytes=held.resident_bytes,
        stash_bytes=held.stash_bytes,
        in_flight_limit=held.in_flight_limit,
    )


@dataclass(frozen=True, eq=False)
class _HeldBytes:
    """What does not depend on seconds; the attributes are those of `StageCosts`."""

    parameters: IntArray
    shared_parameters: IntArray
    resident_bytes: FloatArray
    stash_bytes: FloatArray
    in_flight_limit: IntArray


@for_many_designs
def _held_by_runs(
    parameters: tuple[tuple[int, int], ...],
    stash_and_transient: tuple[tuple[int, int], ...],
    optimizer: Optimizer,
    shards: Shards,
    usable_bytes: float,
) -> _HeldBytes:
    """Compute what all stages hold; the designs of a study share it.

    Parameters
    ----------
    parameters
        Of each layer: all, and those that are tied.
    stash_and_transient
        Bytes of each layer.
    optimizer, shards, usable_bytes
        What decides the state, and what may be held.
    """
    stash_bytes, transient_bytes = zip(*stash_and_transient, strict=True)
    all_parameters, shared = _parameters_of_runs(parameters)
    stash = _sums(stash_bytes)
    own = [count for count, _ in parameters]
    resident = _resident_bytes(own, transient_bytes, all_parameters, optimizer, shards)
    return _HeldBytes(
        parameters=all_parameters.astype(np.int64),
        shared_parameters=shared.astype(np.int64),
        resident_bytes=resident,
        stash_bytes=stash,
        in_flight_limit=in_flight_limits(resident, stash, usable_bytes),
    )


def in_flight_limits(
    resident_bytes: FloatArray, stash_bytes: FloatArray, usable_bytes: float
) -> IntArray:
    """Return how many microbatches each stage may have in flight; see `StageCosts`."""
    free = np.floor(usable_bytes) - resident_bytes
    # A stage that stashes nothing may have any number in flight, even where nothing is free.
    limit = np.where(stash_bytes > 0, np.floor_divide(free, np.maximum(stash_bytes, 1)), _UNLIMITED)
    return np.where(free < 0, -1, limit).astype(np.int64)


def collective_table_s(terms: Sequence[Term], size_bytes: FloatArray) -> FloatArray:
    """Return the time of the cheapest algorithm for many sizes; nothing to send takes no time."""
    if not terms:
        return np.zeros_like(size_bytes)
    times_s = [term.seconds(size_bytes) for term in terms]
    return np.where(size_bytes > 0, np.minimum.reduce(times_s), 0.0)


def _resident_bytes(
    own_parameters: Sequence[int],
    transient_bytes: Sequence[int],
    parameters: FloatArray,
    optimizer: Optimizer,
    shards: Shards,
) -> FloatArray:
    """Return state and largest working set of runs of layers."""
    state = sum(
        np.ceil(parameters * held / count)
        for held, count in (
            (optimizer.weight_bytes, shards.weights),
            (optimizer.gradient_bytes, shards.gradients),
            (optimizer.state_bytes, shards.optimizer),
        )
    )
    working_set = _maxima(transient_bytes)
    if shards != UNSHARDED:
        whole = [shards.whole_layer_bytes(count, optimizer) for count in own_parameters]
        working_set = working_set + _maxima(whole)
    return np.asarray(state + working_set, dtype=np.float64)


def _sums(values: Sequence[float]) -> FloatArray:
    return sums_of_runs(np.array(values, dtype=np.float64))


def _maxima(values: Sequence[float]) -> FloatArray:
    return maxima_of_runs(np.array(values, dtype=np.float64))


def parameters_of_runs(layers: Sequence[LayerCost]) -> tuple[FloatArray, FloatArray]:
    """Count the parameters of runs of layers, and those shared with layers outside."""
    return _parameters_of_runs(tuple((each.parameters, each.tied_parameters) for each in layers))


@for_many_designs
def _parameters_of_runs(
    parameters: tuple[tuple[int, int], ...],
) -> tuple[FloatArray, FloatArray]:
    """Count the same, of layers with so many parameters, and so many that are tied."""
    own, tied = zip(*parameters, strict=True)
    tied_sum, tied_max = _sums(tied), _maxima(tied)
    shared = np.where(tied_sum < sum(tied), tied_max, 0.0)
    return _sums(own) - tied_sum + tied_max, shared


@for_many_designs
def _receives(
    output_bytes: tuple[int, ...], edges: tuple[tuple[int, int], ...], messages: tuple[Term, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return seconds of receiving activations and gradients, and bytes sent, of runs of layers."""
    consumers: dict[int, list[int]] = {}
    for source, destination in edges:
        consumers.setdefault(source, []).append(destination)
    sizes_bytes = [float(output_bytes[source]) for source in consumers]
    fastest = {size_bytes: cheapest(messages, size_bytes) for size_bytes in set(sizes_bytes)}
    seconds = {size_bytes: term.seconds(size_bytes) for size_bytes, term in fastest.items()}
    return receives_of_runs(
        len(output_bytes),
        np.array(list(consumers), dtype=np.int64),
        np.cumsum([0, *map(len, consumers.values())], dtype=np.int64),
        np.array(list(chain.from_iterable(consumers.values())), dtype=np.int64),
        np.array([seconds[size_bytes] for size_bytes in sizes_bytes]),
        np.array([fastest[size].all_sent_per_byte * size for size in sizes_bytes]),
    )
