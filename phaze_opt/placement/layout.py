"""Which layers are on which stage: the split of a chain, interleaved or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.on_demand import cached_property
from phaze_opt.placement.candidates import Candidate

Layer = TypeVar("Layer")

Runs = tuple[tuple[int, int], ...]
"""First and last + 1 layer of every chunk of a stage."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Degrees of parallelism with the layers of every stage.

    Attributes
    ----------
    candidate
        The degrees.
    first, last : (chunks, stages)
        First and last + 1 layer of every chunk of every stage; one chunk unless interleaved.
    gathers_ahead
        Whether weights that are gathered once per batch come in beside the first forward, rather
        than after the optimizer step, where stages that end early have time.
    zero_bubble
        The schedule, where it splits the backward; two chunks lie in a V (`in_v`).
    """

    candidate: Candidate
    first: IntArray
    last: IntArray
    gathers_ahead: bool = True
    zero_bubble: PipelineScheduleName | None = None

    @classmethod
    def of_starts(
        cls, candidate: Candidate, starts: IntArray, layers: int, chunks: int = 1
    ) -> Layout:
        """Build a layout from the first layers of its parts, in the order of the chain.

        Parameters
        ----------
        candidate
            The degrees.
        starts : (chunks · stages,)
            Part ``c · stages + s`` is chunk ``c`` of stage ``s``.
        layers
            Of the model.
        chunks
            Of each stage.
        """
        ends = np.append(starts[1:], layers)
        shape = chunks, candidate.pipeline
        return cls(candidate, np.reshape(starts, shape), np.reshape(ends, shape))

    def in_v(self) -> Layout:
        """Return the same parts with the second chunks from the last stage to the first."""
        first, last = self.first.copy(), self.last.copy()
        first[1], last[1] = first[1, ::-1], last[1, ::-1]
        return replace(self, first=first, last=last)

    @property
    def chunks(self) -> int:
        """Chunks of layers on each stage."""
        return len(self.first)

    def runs(self, stage: int) -> Runs:
        """Return the layers of every chunk of a stage."""
        return self.all_runs[stage]

    @cached_property
    def all_runs(self) -> tuple[Runs, ...]:
        """The same of all stages."""
        ends = zip(self.first.T.tolist(), self.last.T.tolist(), strict=True)
        return tuple([tuple(zip(first, last, strict=True)) for first, last in ends])

    def layers(self, stage: int, layers: Sequence[Layer]) -> list[Layer]:
        """Return the layers of all chunks of a stage, or whatever there is one of for each."""
        return [layer for i, j in self.runs(stage) for layer in layers[i:j]]
