"""What a chain of layers holds and sends, which no time changes: tables of all possible stages.

As in `phaze_opt.placement.costs`, tables are indexed ``[i, j]`` for the stage that holds the layers
``i … j − 1``. The designs of a study differ in seconds: most of these tables are found once for
many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.network.term import Term, cheapest
from phaze_opt.on_demand import cached_property
from phaze_opt.optimizers import Optimizer
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.memory import Shards, share_bytes
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.runs import maxima_of_runs, receives_of_runs, sums_of_runs

_UNLIMITED = 2**31
"""More microbatches in flight than any batch has."""

MOST_LAYERS = 128
"""Tables of longer chains are kept for as long as the chain itself: they take megabytes each."""

_KEPT = 96
"""Results that are kept of a function: of three sizes of HBM, eight ways to train, four degrees."""

F = TypeVar("F", bound=Callable[..., Any])


def for_many_designs(function: F) -> F:
    """Keep the last results of a function of a chain, its first argument.

    Those of a long chain are kept with it.
    """
    of_long: WeakKeyDictionary[object, dict[object, object]] = WeakKeyDictionary()

    def find_long(layers: Any, *others: object) -> object:
        results = of_long.setdefault(layers, {})
        if others not in results:
            results[others] = function(layers, *others)
        return results[others]

    return _kept_of_short(function, find_long)


def for_many_designs_if_short(function: F) -> F:
    """Keep the last results of a function of a chain that has many of them, unless it is long."""
    return _kept_of_short(function, function)


def _kept_of_short(function: F, of_long: Callable[..., object]) -> F:
    """Keep the last results of a function of short chains, and ask another one about long ones."""
    kept = lru_cache(maxsize=_KEPT)(function)

    @wraps(function)
    def find(layers: Any, *others: object) -> object:
        return (kept if len(layers) <= MOST_LAYERS else of_long)(layers, *others)

    return cast(F, find)


@dataclass(frozen=True, eq=False)
class ChainParameters:
    """Parameters of every layer per device, and those that are tied; one object as `ChainBytes`.

    ``routed``, ``elsewhere``, ``accumulated``, ``frozen``, ``frozen_tied``, ``wide`` and
    ``wide_tied`` are as in `phaze_opt.passes.layer_cost.LayerCost`.
    """

    own: tuple[int, ...]
    tied: tuple[int, ...]
    routed: tuple[int, ...]
    elsewhere: tuple[int, ...]
    accumulated: tuple[int, ...]
    frozen: tuple[int, ...]
    frozen_tied: tuple[int, ...]
    wide: tuple[int, ...]
    wide_tied: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True, eq=False)
class ChainBytes:
    """What every layer of a chain holds and sends; equal ones are one object while it is used.

    Attributes
    ----------
    parameters
        Of the layers.
    stash_bytes, transient_bytes, output_bytes, returns
        Of each layer, see `phaze_opt.passes.layer_cost.LayerCost`.
    edges
        Between layers.
    """

    parameters: ChainParameters
    stash_bytes: tuple[int, ...]
    transient_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    returns: tuple[bool, ...]
    edges: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.stash_bytes)

    @cached_property
    def layers(self) -> tuple[LayerCost, ...]:
        """Layers without names that hold and send as much, and take no time."""
        own = self.parameters
        held = own.own, own.tied, self.stash_bytes, self.transient_bytes, self.output_bytes
        others = own.routed, own.elsewhere, own.accumulated
        some = own.frozen, own.frozen_tied, own.wide, own.wide_tied
        each = zip(*held, *others, *some, self.returns, strict=True)
        return tuple([LayerCost("", LayerPasses(), *own) for own in each])


_COLUMNS = attrgetter(
    *("parameters", "tied_parameters", "routed_parameters", "elsewhere_parameters"),
    *("accumulated_parameters", "frozen_parameters", "frozen_tied_parameters"),
    *("wide_parameters", "wide_tied_parameters"),
    *("stash_bytes", "transient_bytes", "output_bytes", "returns_gradient"),
)


def chain_bytes(problem: PlacementProblem, tensor: int) -> ChainBytes:
    """Return what the layers of a problem hold and send at one tensor degree."""
    layers, kinds = problem.layers[tensor], problem.kinds_of(tensor)
    distinct = tuple([_COLUMNS(layers[index]) for index in kinds.first])
    key = tuple(kinds.which.tolist()), distinct, problem.edges
    chain = _chains.get(key)
    if chain is None:
        chain = _chains[key] = _chain(*key)
    return chain


def _chain(
    which: tuple[int, ...],
    distinct: tuple[tuple[int, ...], ...],
    edges: tuple[tuple[int, int], ...],
) -> ChainBytes:
    """Write the layers of some kinds out."""
    *held, stash, transient, output, returns = zip(*(distinct[kind] for kind in which), strict=True)
    parameters = _parameters.get(tuple(held))
    if parameters is None:
        parameters = _parameters[tuple(held)] = ChainParameters(*held)
    return ChainBytes(parameters, stash, transient, output, returns, edges)


# Tables are looked up by the object, so that long tuples are compared once for all of them. What
# keeps tables keeps the object.
_chains: WeakValueDictionary[tuple[Any, ...], ChainBytes] = WeakValueDictionary()
_parameters: WeakValueDictionary[tuple[Any, ...], ChainParameters] = WeakValueDictionary()


@for_many_designs
def parameters_of_runs(parameters: ChainParameters) -> tuple[FloatArray, FloatArray]:
    """Count the parameters of runs of layers, and those shared with layers outside."""
    tied_sum, tied_max = sums(parameters.tied), maxima(parameters.tied)
    shared = np.where(tied_sum < sum(parameters.tied), tied_max, 0.0)
    return sums(parameters.own) - tied_sum + tied_max, shared


def whole_parameters_of_runs(parameters: ChainParameters) -> FloatArray:
    """Count the parameters of runs of layers with the experts of the whole group."""
    own, _ = parameters_of_runs(parameters)
    return own + sums(parameters.elsewhere) if any(parameters.elsewhere) else own


def not_elsewhere(parameters: ChainParameters) -> IntArray:
    """Count the parameters of layers that a replica has more of than its share of them: below 0.

    Of routed experts that the devices of a replica hold more than once; what it holds, steps and
    exchanges is at least the rest.
    """
    return np.minimum(np.array(parameters.elsewhere, dtype=np.int64), 0)


def frozen_of_runs(parameters: ChainParameters) -> FloatArray:
    """Count the parameters of runs of layers that are not trained: `local_frozen_parameters`."""
    tied = parameters.frozen_tied
    return sums(parameters.frozen) - sums(tied) + maxima(tied)


def wide_of_runs(parameters: ChainParameters) -> FloatArray:
    """Count the parameters of runs of layers without narrow copies: `local_wide_parameters`."""
    tied = parameters.wide_tied
    return sums(parameters.wide) - sums(tied) + maxima(tied)


def added_of_runs(parameters: ChainParameters, gradient_shards: int) -> FloatArray:
    """Count the parameters of runs of layers whose gradients a device adds up beside the passes.

    As `phaze_opt.passes.layer_cost.added_parameters`; of routed experts those of the whole group
    where replicas share gradients out.
    """
    if gradient_shards > 1:
        return whole_parameters_of_runs(parameters)
    held, _ = parameters_of_runs(parameters)
    if not any(parameters.accumulated):
        return held
    return np.minimum(sums(parameters.own) - sums(parameters.accumulated), held)


@dataclass(frozen=True, eq=False)
class HeldBytes:
    """What stages hold, per device.

    Attributes
    ----------
    parameters
        Of the layers: tied ones once, and of routed experts those of the whole group where
        replicas share gradients out.
    added
        Whose gradients a device adds up beside the passes, or its share of them.
    resident_bytes, stash_bytes
        State and largest working set; what each microbatch in flight adds.
    in_flight_limit
        Most microbatches whose stash fits beside state and working set; −1 if not even those fit.
    """

    parameters: FloatArray
    added: FloatArray
    resident_bytes: FloatArray
    stash_bytes: FloatArray
    in_flight_limit: IntArray


@for_many_designs
def held_by_runs(
    layers: ChainBytes, optimizer: Optimizer, shards: Shards, usable_bytes: float
) -> HeldBytes:
    """Compute what all stages hold.

    Parameters
    ----------
    layers
        Of each stage.
    optimizer, shards, usable_bytes
        What decides the state, and what may be held.
    """
    all_parameters, _ = parameters_of_runs(layers.parameters)
    if shards.gradients > 1:
        all_parameters = whole_parameters_of_runs(layers.parameters)
    stash = sums(layers.stash_bytes)
    resident = _resident_bytes(layers, optimizer, shards)
    return HeldBytes(
        parameters=all_parameters,
        added=added_of_runs(layers.parameters, shards.gradients),
        resident_bytes=resident,
        stash_bytes=stash,
        in_flight_limit=in_flight_limits(resident, stash, usable_bytes),
    )


@lazily_compiled("int64[:,::1](float64[:,::1], float64[:,::1], float64)")
def in_flight_limits(
    resident_bytes: FloatArray, stash_bytes: FloatArray, usable_bytes: float
) -> IntArray:
    """Return how many microbatches each stage may have in flight; −1 if not even its state fits.

    Parameters
    ----------
    resident_bytes, stash_bytes : (layers, layers + 1)
        State and largest working set of every stage, and what each microbatch adds: whole numbers.
    usable_bytes
        Of a device.
    """
    limit = np.empty(resident_bytes.shape, dtype=np.int64)
    all_bytes = np.floor(usable_bytes)
    for i in range(len(limit)):
        resident, stash, most = resident_bytes[i], stash_bytes[i], limit[i]
        for j in range(len(most)):
            free, each = all_bytes - resident[j], max(stash[j], 1.0)
            # A quotient may be rounded up to the next whole number: the product tells.
            count = np.floor(free / each)
            count -= 1.0 if count * each > free else 0.0
            count = count if stash[j] > 0.0 else float(_UNLIMITED)
            most[j] = int(count if free >= 0.0 else -1.0)
    return limit


@lazily_compiled(
    "Tuple((int64[:,:,::1], int64[::1]))(float64[:,:,::1], float64[:,::1], float64[:,::1],"
    " float64, int64)"
)
def distinct_limits(
    state_bytes: FloatArray,
    working_bytes: FloatArray,
    stash_bytes: FloatArray,
    usable_bytes: float,
    most: int,
) -> tuple[IntArray, IntArray]:
    """Return the `in_flight_limits` of stages with some states, equal neighbours once.

    Without the limits that nobody reaches, most neighbours are equal.

    Parameters
    ----------
    state_bytes : (states, layers, layers + 1)
        See `states_of_runs`.
    working_bytes, stash_bytes, usable_bytes
        Working set of every stage, and as for `in_flight_limits`.
    most
        Limits above it are this one, but of the stage that holds all layers.

    Returns
    -------
    limits : (distinct tables, layers, layers + 1)
    which : (states,)
        The table of each state.
    """
    limits = np.empty(state_bytes.shape, dtype=np.int64)
    which = np.empty(len(state_bytes), dtype=np.int64)
    last = -1
    for state in range(len(state_bytes)):
        limit = in_flight_limits(state_bytes[state] + working_bytes, stash_bytes, usable_bytes)
        of_all = limit[0, -1]
        limit = np.minimum(limit, most)
        limit[0, -1] = of_all
        differs = last < 0
        for i in range(len(limit)):
            for j in range(i, limit.shape[1]):
                differs = differs or limit[i, j] != limits[last, i, j]
        if differs:
            last += 1
            limits[last] = limit
        which[state] = last
    return limits[: last + 1].copy(), which


def _resident_bytes(layers: ChainBytes, optimizer: Optimizer, shards: Shards) -> FloatArray:
    """Return state and largest working set of runs of layers."""
    (state,) = states_of_runs(layers.parameters, optimizer, [shards])
    state += maxima(layers.transient_bytes)
    return np.asarray(state)


def states_of_runs(
    parameters: ChainParameters, optimizer: Optimizer, shards: Sequence[Shards]
) -> FloatArray:
    """Return the state of runs of layers, and what having a whole layer adds to their working sets.

    Frozen weights are part of the state.

    Parameters
    ----------
    parameters
        Of the layers.
    optimizer, shards
        What decides the state, the latter in several ways.

    Returns
    -------
    state_bytes : (ways, layers, layers + 1)
    """
    all_parameters, _ = parameters_of_runs(parameters)
    held_bytes = np.array(optimizer.held_bytes, dtype=np.float64)
    kinds = np.array(shards, dtype=np.float64).reshape(-1, 3)
    whole = whole_parameters_of_runs(parameters)
    states = _states(all_parameters, whole, held_bytes, kinds)
    if any(parameters.frozen):
        states += np.ceil(frozen_of_runs(parameters) * held_bytes[0])
    if any(parameters.wide):
        states += np.ceil(wide_of_runs(parameters) * optimizer.wide_bytes)
    # Many layers have as many parameters as others.
    counts = [*zip(parameters.own, parameters.elsewhere, strict=True)]
    distinct = [*dict.fromkeys(counts)]
    which = [distinct.index(count) for count in counts]
    for state, each in zip(states, shards, strict=True):
        if max(each.weights, each.gradients) > 1:
            added = [each.whole_layer_bytes(*count, optimizer) for count in distinct]
            state += maxima([added[place] for place in which])
    return states


@lazily_compiled("float64[:,:,::1](float64[:,::1], float64[:,::1], float64[::1], float64[:,::1])")
def _states(
    parameters: FloatArray, whole: FloatArray, held_bytes: FloatArray, shards: FloatArray
) -> FloatArray:
    """Return the state of parameters, each kind shared out and rounded up by itself.

    Parameters
    ----------
    parameters, whole : (layers, layers + 1)
        Of every stage; of what is shared out, with the experts of the whole group.
    held_bytes : (3,)
        Per parameter, of weights, gradients and optimizer.
    shards : (ways, 3)
        Over how many replicas each kind is shared out.
    """
    states = np.zeros((len(shards), *parameters.shape))
    for way in range(len(shards)):
        for i in range(len(parameters)):
            state = states[way, i]
            for kind in range(len(held_bytes)):
                own = whole[i] if shards[way, kind] > 1.0 else parameters[i]
                for j in range(len(own)):
                    state[j] += share_bytes(own[j], held_bytes[kind], shards[way, kind])
    return states


class Received(NamedTuple):
    """What stages receive: one message per layer outside whose output, or gradient, they need.

    Attributes
    ----------
    activation_s, gradient_s
        Seconds of receiving.
    """

    activation_s: FloatArray
    gradient_s: FloatArray


@for_many_designs
def receives(layers: ChainBytes, messages: tuple[Term, ...]) -> Received:
    """Return what runs of layers receive by the fastest of some ways."""
    activation_s, gradient_s, _ = _messages(layers, messages)
    return Received(activation_s, gradient_s)


@for_many_designs
def transfer_bytes(layers: ChainBytes, messages: tuple[Term, ...]) -> FloatArray:
    """Return what each device sends in the messages of `receives`, in bytes."""
    *_, sent_bytes = _messages(layers, messages)
    return sent_bytes


def _messages(
    layers: ChainBytes, messages: tuple[Term, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return seconds of receiving activations and gradients, and bytes sent, of runs of layers."""
    consumers: dict[int, list[int]] = {}
    for source, destination in layers.edges:
        consumers.setdefault(source, []).append(destination)
    sizes_bytes = [float(layers.output_bytes[source]) for source in consumers]
    fastest = {size_bytes: cheapest(messages, size_bytes) for size_bytes in set(sizes_bytes)}
    seconds = {size_bytes: term.seconds(size_bytes) for size_bytes, term in fastest.items()}
    return receives_of_runs(
        len(layers),
        np.array(list(consumers), dtype=np.int64),
        np.cumsum([0, *map(len, consumers.values())], dtype=np.int64),
        np.array(list(chain.from_iterable(consumers.values())), dtype=np.int64),
        np.array([seconds[size_bytes] for size_bytes in sizes_bytes]),
        np.array([fastest[size].all_sent_per_byte * size for size in sizes_bytes]),
        np.array([layers.returns[source] for source in consumers], dtype=np.bool_),
    )


def sums(values: Sequence[float] | FloatArray) -> FloatArray:
    """Sum all runs of layers with some values."""
    return sums_of_runs(np.array(values, dtype=np.float64))


def maxima(values: Sequence[float]) -> FloatArray:
    """Take the largest of all runs of layers with some values."""
    return maxima_of_runs(np.array(values, dtype=np.float64))
