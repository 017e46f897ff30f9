"""The largest memory that is alive while nodes run, with and without fusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from torch import fx

from phaze_opt.workload.capture.aten import work_of
from phaze_opt.workload.capture.tensors import LiveGraph, ResultMemory
from phaze_opt.workload.graph import ELEMENTWISE_KINDS

Kind = Literal["elementwise", "rows", "product", "other"]

_FUSED_WITH: dict[Kind, tuple[Kind, ...]] = {
    "elementwise": ("elementwise", "rows"),
    "product": ("elementwise",),
}
"""By kind of the operator that makes a result: kinds that may read it in the same kernel."""


@dataclass(frozen=True)
class Step:
    """The memory that one node reads and writes, and its kind, which decides on fusion."""

    kind: Kind
    reads: frozenset[ResultMemory]
    writes: tuple[ResultMemory, ...]


def step_of(live: LiveGraph, node: fx.Node) -> Step:
    """Return the step of a working node of a live graph."""
    work = work_of(node)
    kind: Kind = "other"
    if all(piece.vector and not piece.gemms and piece.collective is None for piece in work):
        kinds = {vector.kind for piece in work for vector in piece.vector}
        kind = "elementwise" if kinds.issubset(ELEMENTWISE_KINDS) else "rows"
    elif len(work) == 1 and len(work[0].gemms) == 1:
        kind = "product"
    return Step(kind, frozenset(live.operands(node)), live.written(node))


def peak_bytes(
    steps: Sequence[Step],
    *,
    arriving: Iterable[ResultMemory],
    leaving: Iterable[ResultMemory],
    uncounted: Iterable[ResultMemory],
) -> int:
    """Return the largest sum of live tensors while steps run in order.

    Parameters
    ----------
    steps
        In order of execution.
    arriving
        Tensors that are alive before the first step, until their last use.
    leaving
        Results that stay alive to the end; all other tensors die with their last use.
    uncounted
        Memory that is counted elsewhere (stash, parameters).
    """
    last_use: dict[ResultMemory, int] = {}
    for position, step in enumerate(steps):
        for base in (*step.reads, *step.writes):
            last_use[base] = position
    last_use.update((base, len(steps)) for base in leaving)
    skipped = set(uncounted)
    changes = [0] * (len(steps) + 2)

    def hold(base: ResultMemory, start: int) -> None:
        if base not in skipped:
            changes[start] += base.size_bytes
            changes[last_use.get(base, start) + 1] -= base.size_bytes

    for base in set(arriving):
        hold(base, 0)
    for position, step in enumerate(steps):
        for base in step.writes:
            hold(base, position)
    return max(accumulate(changes))


def fuse_steps(steps: Sequence[Step], leaving: Iterable[ResultMemory]) -> list[Step]:
    """Return the steps as a compiler fuses them: results that stay on the chip are not written.

    A result stays on the chip as in `phaze_opt.workload.fusion`: an elementwise operator is the
    only reader of the result of an elementwise operator or of a product, or an operator by rows is
    the only reader of an elementwise one. The operands of the first step are alive until the
    second step has run.

    Parameters
    ----------
    steps
        In order of execution.
    leaving
        Results that are read elsewhere; they are always written.
    """
    readers = Counter(base for step in steps for base in step.reads)
    reader = {base: index for index, step in enumerate(steps) for base in step.reads}
    outside = set(leaving)
    fused = list(steps)
    for index, step in enumerate(fused):
        partners = _FUSED_WITH.get(step.kind, ())
        inner = {
            base
            for base in step.writes
            if base not in outside and readers[base] == 1 and steps[reader[base]].kind in partners
        }
        for base in inner:
            into = fused[reader[base]]
            fused[reader[base]] = replace(into, reads=(into.reads | step.reads) - {base})
        fused[index] = replace(step, writes=tuple(b for b in step.writes if b not in inner))
    return fused
