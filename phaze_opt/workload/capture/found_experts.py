"""Routed experts that a user's module shows without a plan: stacked weights beside their top-k.

A part is a candidate if a plan could name it: it holds two or three stacked matrices (or its parts
do), and nothing else but a router (`phaze_opt.workload.capture.own_experts`). It is experts if its
forward, or that of what holds it and chooses for it, takes the largest k (``torch.topk``) of as
many scores as the weights have experts; an attribute that says how many experts a token has must be
one of these k. Batched weights without a top-k are no experts: all of them work on every token.

A module that cannot be traced as it is stops at its first selection by value. What its forward
chose before that holds for parts of the same class and shapes too, which it did not reach; and
where it chose nothing, the arguments of a candidate or its attribute are enough.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.own_experts import OwnExperts, experts_of


class FoundExperts(NamedTuple):
    """What a plan may name.

    Attributes
    ----------
    styles
        Experts by the name of their part, as a plan says it.
    unclear
        Candidates beside a router or a top-k that does not say how many experts a token has.
    """

    styles: dict[str, str]
    unclear: tuple[str, ...]


class _Candidate(NamedTuple):
    """A part that a plan could name, what would take its place, and where experts are chosen."""

    name: str
    own: OwnExperts
    chosen_in: str
    alike: tuple[Any, ...]


class _TopK(NamedTuple):
    """A choice of the largest of some scores, by the part whose forward made it."""

    part: str
    scores: int
    top_k: int


def find_experts(module: nn.Module, run: Callable[[], object], *, traced: bool) -> FoundExperts:
    """Return the parts of a module that are experts with stacked weights.

    Parameters
    ----------
    module
        Of the user, on the meta device.
    run
        Runs its forward.
    traced
        Whether the module can be traced as it is.
    """
    candidates = _candidates(module)
    choices = _choices(module, run) if candidates else []
    styles: dict[str, str] = {}
    unclear: list[str] = []
    known: dict[tuple[Any, ...], set[int]] = {}
    for each in candidates:
        seen = {
            choice.top_k
            for choice in choices
            if choice.scores == each.own.network.experts and _is_in(choice.part, each.chosen_in)
        }
        if not traced:
            seen = known.setdefault(each.alike, seen) or seen
        style = _style(each.own, seen)
        if not (seen or traced) and (each.own.routes or not each.own.has_router):
            style = "experts"
        if style is not None:
            styles[each.name] = style
        elif seen or each.own.has_router:
            unclear.append(each.name)
    return FoundExperts(styles, tuple(unclear))


def _style(own: OwnExperts, seen: Set[int]) -> str | None:
    """Return what a plan says of experts with some choices; ``None`` where that is unclear."""
    if own.top_k in seen or (seen and not own.has_router):
        return "experts"
    return f"experts:{min(seen)}" if len(seen) == 1 and own.top_k == 0 else None


def _candidates(module: nn.Module) -> list[_Candidate]:
    """Return the parts that hold stacked weights, or what holds these with their router."""
    found: dict[str, _Candidate] = {}
    for name, part in module.named_modules():
        stacked = any(weight.dim() == 3 for weight in part.parameters(recurse=False))
        if not stacked or type(part).__module__.startswith("torch.nn."):  # a convolution
            continue
        holder = name.rpartition(".")[0]
        for own_name in (name, holder):
            try:
                _, own = experts_of(module, own_name, "experts")
            except InputError:
                continue
            if own.has_router or (own_name == name and _takes_experts(part)):
                chosen_in = own_name if own.has_router else holder
                shapes = tuple(weight.shape for weight in part.parameters())
                alike = type(part), own.has_router, own.top_k, shapes
                found.setdefault(own_name, _Candidate(own_name, own, chosen_in, alike))
                break
    return list(found.values())


def _takes_experts(module: nn.Module) -> bool:
    """Say whether a module may be called with tokens, the experts of each and their weights."""
    return len(inspect.signature(module.forward).parameters) >= 3


def _is_in(part: str, place: str) -> bool:
    """Say whether a part of a module is another one, or inside it."""
    return not place or part == place or part.startswith(f"{place}.")


class _WatchTopK(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is chosen, and by which part."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = [""]
        self.choices: list[_TopK] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if function is torch.ops.aten.topk.default:
            scores, top_k, dimension = (*arguments, -1)[:3]
            self.choices.append(_TopK(self.running[-1], scores.shape[dimension], top_k))
        return function(*arguments, **(keywords or {}))


def _choices(module: nn.Module, run: Callable[[], object]) -> list[_TopK]:
    """Return what a forward chooses, up to where it cannot go on without values."""
    watch = _WatchTopK()
    try:
        with _parts_noted(module, watch.running), watch:
            run()
    except (Exception, SystemExit):
        pass  # the trace says why
    return watch.choices


@contextmanager
def _parts_noted(module: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the names of the parts whose forwards are running."""
    names = {id(part): name for name, part in module.named_modules()}

    def enter(part: nn.Module, _: Any) -> None:
        running.append(names.get(id(part), running[-1]))

    def leave(part: nn.Module, _: Any, result: Any) -> None:
        running.pop()

    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
