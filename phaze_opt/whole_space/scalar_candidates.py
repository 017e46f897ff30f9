"""Degrees of parallelism as plain numbers, one after another; see `scalar_bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.placement import least_splits as column
from phaze_opt.placement.least_candidates import CandidateArrays


class ScalarCandidate(NamedTuple):
    """Degrees of parallelism; the columns of `phaze_opt.placement.least_splits`, in their order.

    Attributes
    ----------
    each_share
        How often the work on one microbatch is done one after another, at least.
    """

    stages: int
    microbatches: int
    chunks: int
    limit: int
    synchronised: int
    gathered: int
    every_pass: int
    gpipe: int
    overlaps: int
    activation_s: float
    gradient_s: float
    exchange_latency_s: float
    exchange_s_per_parameter: float
    exchange_s_per_root: float
    optimizer_shards: float
    gradient_shards: float
    mean_synchronisation_s: float
    reach: float
    most_repeated: float
    each_share: float

    @property
    def in_flight(self) -> int:
        """Microbatches in flight at the first stage before its first backward."""
        return 1 if self.gpipe else min(self.stages, self.microbatches)


class Line(NamedTuple):
    """A bound of the time of a batch by the sums of all forwards and of all backwards.

    Attributes
    ----------
    forwards, backwards
        How often each counts.
    others_s
        What comes to them.
    """

    forwards: float
    backwards: float
    others_s: float


class ScalarCandidates:
    """The candidates of one width, as plain numbers, those of least work first.

    Attributes
    ----------
    own
        Sums over the layers before each of the parameters that count once.
    every_pass, lines, held, limit
        As `phaze_opt.placement.least_times.least_times_s` takes them.
    tails
        What follows the last backward of stages, as far as it was asked for.
    first, count, fewest_own
        Of the layer that is repeated most: the first, how many, and the fewest parameters of one.
    """

    def __init__(self, arrays: CandidateArrays, distinct: Sequence[int]) -> None:
        own: list[float] = arrays.own.tolist()
        self.own = [0.0, *accumulate(own)]
        self.every_pass: list[list[list[float]]] = arrays.every_pass.tolist()
        self.lines: list[list[list[float]]] = arrays.lines.tolist()
        self.held: list[list[list[float]]] = arrays.held.tolist()
        self.limit: list[list[list[int]]] = arrays.limit.tolist()
        rows = np.hstack([arrays.real[:, : column.STEP_S], _each_share(arrays)]).tolist()
        found = [
            ScalarCandidate(*whole, *real)
            for whole, real in zip(arrays.whole.tolist(), rows, strict=True)
        ]
        self.rows = sorted(found, key=lambda one: one.each_share)
        self._lines: dict[ChipSeconds, list[Sequence[Line]]] = {}
        self.tails: dict[
            tuple[ScalarCandidate, ChipSeconds], dict[tuple[int, int], tuple[float, float]]
        ] = {}
        most = max(range(max(distinct) + 1), key=distinct.count)
        repeated = [at for at, index in enumerate(distinct) if index == most]
        self.first, self.count = repeated[0], len(repeated)
        self.fewest_own = min(own[at] for at in repeated)

    def lines_of(self, chip: ChipSeconds) -> list[Sequence[Line]]:
        """Return where `SplitBatch.average_stage` of every candidate is kept; empty until then."""
        if chip not in self._lines:
            self._lines[chip] = [() for _ in self.rows]
        return self._lines[chip]


def _each_share(arrays: CandidateArrays) -> FloatArray:
    """Return `ScalarCandidate.each_share` of all candidates: (candidates, 1)."""
    whole, real = arrays.whole, arrays.real
    waves = whole[:, column.MICROBATCHES] / whole[:, column.STAGES]
    return np.maximum(waves, 1.0 / real[:, column.REACH])[:, np.newaxis]


@dataclass(frozen=True)
class ChipSeconds:
    """What a chip takes beside the passes of its layers.

    Attributes
    ----------
    step_s, accumulation_s
        Per parameter.
    core_share
        Of the cores, that communication takes.
    """

    step_s: float
    accumulation_s: float
    core_share: float
