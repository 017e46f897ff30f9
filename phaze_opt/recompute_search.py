"""The fastest recompute: none, selective, full, or any set of parts, for every kind of layer.

A set of parts is a choice of `phaze_opt.workload.recompute_parts` for each kind of layer. More
parts keep less and run more again, so that a batch takes at least as long where the memory holds
everything. The search begins with no part and adds one at a time, the sets with the least such time
first; a set whose time without a limit of the memory is not below the best known time is left, with
all that contain it. Those that keep no less than a smaller set are left from the beginning. What is
left out cannot be faster, so that the answer is the fastest of all sets. (Operators are taken to
run no faster when others run again too, caches included; tests compare with all sets.)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from phaze_opt.training import Training, recompute_with
from phaze_opt.workload.graph import WorkloadVariant
from phaze_opt.workload.recompute_parts import memory_with_parts, parts_by_layer

Choice = tuple[frozenset[str], ...]
"""Parts that run again, by kind of layer."""


def fastest_recompute(
    variants: Sequence[WorkloadVariant],
    training: Training,
    time_s: Callable[[Training], float],
    least_s: Callable[[Training], float],
) -> Training:
    """Return a training with the recompute of the least time; full recompute if none fits.

    Parameters
    ----------
    variants
        The model at the tensor degrees that may be used, as captured.
    training
        All but its recompute.
    time_s
        Time of a batch in seconds; infinite where nothing fits.
    least_s
        The same as if the memory held everything.
    """
    full = replace(training, recompute="full", recompute_parts="")
    best, best_s = full, time_s(full)
    selective = replace(full, recompute="selective")
    selective_s = time_s(selective)
    if selective_s < best_s:
        best, best_s = selective, selective_s
    layers = _layers(variants)
    sets = [_useful_sets(variants, layer, parts) for layer, parts in layers.items()]
    none: Choice = tuple(frozenset() for _ in sets)
    seen, count = {none}, itertools.count()
    waiting: list[tuple[float, int, Choice]] = []

    def wait(choice: Choice) -> None:
        bound_s = least_s(with_choice(training, layers, choice))
        if bound_s < best_s:
            heapq.heappush(waiting, (bound_s, next(count), choice))

    wait(none)
    while waiting:
        bound_s, _, choice = heapq.heappop(waiting)
        if bound_s >= best_s:
            break
        chosen = with_choice(training, layers, choice)
        chosen_s = time_s(chosen)
        if chosen_s < best_s:
            best, best_s = chosen, chosen_s
        # Where the memory does not bind, more parts only take longer.
        for larger in _larger(choice, sets) if chosen_s > bound_s else ():
            if larger not in seen:
                seen.add(larger)
                wait(larger)
    return best


def all_choices(variants: Sequence[WorkloadVariant], training: Training) -> Iterator[Training]:
    """Yield the training with every set of parts that may be of use, and with none."""
    layers = _layers(variants)
    sets = [_useful_sets(variants, layer, parts) for layer, parts in layers.items()]
    for choice in itertools.product(*sets):
        yield with_choice(training, layers, choice)


def with_choice(
    training: Training, layers: Mapping[str, tuple[str, ...]], choice: Choice
) -> Training:
    """Return a training whose selective recompute runs a choice again; none if that is empty."""
    by_layer = dict(zip(layers, choice, strict=True))
    named: list[str] = []
    for part in dict.fromkeys(part for parts in layers.values() for part in parts):
        having = [layer for layer, parts in layers.items() if part in parts]
        chosen = [layer for layer in having if part in by_layer[layer]]
        named += [part] if chosen == having else [f"{layer}.{part}" for layer in chosen]
    parts = ",".join(named)
    return replace(training, recompute=recompute_with(parts, "none"), recompute_parts=parts)


def _layers(variants: Sequence[WorkloadVariant]) -> Mapping[str, tuple[str, ...]]:
    """Return the kinds of layers, and the parts that they have at every tensor degree."""
    return parts_by_layer(variants[0])


def _useful_sets(
    variants: Sequence[WorkloadVariant], layer: str, parts: Sequence[str]
) -> list[frozenset[str]]:
    """Return the sets of parts that take less memory than every smaller one, smaller ones first."""
    useful: list[tuple[frozenset[str], list[int]]] = []
    for size in range(len(parts) + 1):
        for some in itertools.combinations(parts, size):
            chosen = frozenset(some)
            sizes = [bytes_ for each in variants for bytes_ in memory_with_parts(each, layer, some)]
            if not any(
                smaller < chosen and all(map(int.__le__, held, sizes)) for smaller, held in useful
            ):
                useful.append((chosen, sizes))
    return [chosen for chosen, _ in useful]


def _larger(choice: Choice, sets: Sequence[Sequence[frozenset[str]]]) -> Iterator[Choice]:
    """Yield the choices with a next larger set of one kind of layer."""
    for place, (own, allowed) in enumerate(zip(choice, sets, strict=True)):
        above = [each for each in allowed if own < each]
        for each in above:
            if not any(own < between < each for between in above):
                yield (*choice[:place], each, *choice[place + 1 :])
