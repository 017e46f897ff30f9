"""Degrees of parallelism as plain numbers, one after another; see `scalar_bounds`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.on_demand import OnDemand
from phaze_opt.placement import least_splits as column
from phaze_opt.placement.least_candidates import CandidateArrays


class ScalarCandidate(NamedTuple):
    """Degrees of parallelism; the columns of `phaze_opt.placement.least_splits`, in their order.

    Attributes
    ----------
    least_share
        Least number of times that the work of one microbatch is done one after another.
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
    synchronised_routed: int
    gathered_routed: int
    splits_backward: int
    shares_level: int
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
    alone: float
    least_share: float

    @property
    def in_flight(self) -> int:
        """Microbatches in flight at the first stage before its first backward."""
        return 1 if self.gpipe else min(self.stages, self.microbatches)


class LayerSeconds(NamedTuple):
    """Bounds of a layer and microbatch, of those in pairs too: backwards with the recompute."""

    forward_s: float
    backward_s: float
    paired_forward_s: float
    paired_backward_s: float


Line = tuple[float, float, float, float]
"""A bound of the time of a batch: factors of the sums of all forwards and of all backwards, and of
what the last backward takes more than the average; and the seconds that are added."""


class ScalarCandidates:
    """The candidates of one tensor degree as plain numbers, sorted by their `least_share`.

    Attributes
    ----------
    rows
        The candidates.
    own, added
        Sums, over the layers before each layer, of the parameters that count once, and of those
        among them that are added up beside the passes.
    links, every_pass, lines, held, limit
        Arguments of `phaze_opt.placement.least_times.least_times_s`; the last two, which are large,
        as the arrays that the bounds share.
    known_s
        Results of `scalar_batches.batch_s`, which go with the candidates.
    tails
        Seconds after the last backward of stages, by candidate and chip; see `scalar_splits`.
    first, count, fewest_own, fewest_added, routed
        Of the layer that is repeated most: place of the first, number, fewest own parameters, and
        of those added up, and those of its share of the routed experts.
    """

    def __init__(self, arrays: CandidateArrays, distinct: Sequence[int]) -> None:
        own: list[float] = arrays.own.tolist()
        added: list[float] = arrays.added.tolist()
        self.own = [0.0, *accumulate(own)]
        self.added = [0.0, *accumulate(added)]
        self.links: list[list[float]] = arrays.links.tolist()
        # Most bounds of boxes ask for few of these.
        self.every_pass = _rows(arrays.every_pass)
        self.lines = _rows(arrays.lines)
        self.held, self.limit = arrays.held, arrays.limit
        rows = np.hstack([arrays.real[:, : column.STEP_S], _least_share(arrays)]).tolist()
        candidates = [
            ScalarCandidate(*whole, *real)
            for whole, real in zip(arrays.whole.tolist(), rows, strict=True)
        ]
        self.rows = sorted(candidates, key=lambda candidate: candidate.least_share)
        self.known_s: dict[Hashable, float] = {}
        self._lines: dict[ChipSeconds, list[Sequence[Line]]] = {}
        self.tails: dict[
            tuple[ScalarCandidate, ChipSeconds], dict[tuple[int, int], tuple[float, float]]
        ] = {}
        most = max(range(max(distinct) + 1), key=distinct.count)
        repeated = [at for at, index in enumerate(distinct) if index == most]
        self.first, self.count = repeated[0], len(repeated)
        self.fewest_own = min(own[at] for at in repeated)
        self.fewest_added = min(added[at] for at in repeated)
        self.routed = self.held_by(self.first, self.first + 1)[column.ROUTED]

    def held_by(self, begin: int, end: int) -> list[float]:
        """Return what a stage of some layers holds, in the order of `least_splits`."""
        held: list[float] = self.held[:, begin, end].tolist()
        return held

    def lines_of(self, chip: ChipSeconds) -> list[Sequence[Line]]:
        """Return the memory of `SplitBatch.average_stage`, one entry per candidate; empty first."""
        if chip not in self._lines:
            self._lines[chip] = [() for _ in self.rows]
        return self._lines[chip]


def _rows(array: FloatArray) -> Mapping[int, list[list[float]]]:
    """Return the rows of an array as plain numbers, each when it is first asked for."""
    return OnDemand(range(len(array)), lambda row: array[row].tolist())


def _least_share(arrays: CandidateArrays) -> FloatArray:
    """Return `ScalarCandidate.least_share` of all candidates: (candidates, 1)."""
    whole, real = arrays.whole, arrays.real
    waves = whole[:, column.MICROBATCHES] / whole[:, column.STAGES]
    return np.maximum(waves, 1.0 / real[:, column.REACH])[:, np.newaxis]


@dataclass(frozen=True)
class ChipSeconds:
    """Seconds of a chip beside the passes of the layers.

    Attributes
    ----------
    step_s, accumulation_s
        Optimizer step and gradient accumulation, per parameter.
    core_share
        Share of the cores that communication takes.
    cast_s
        Casts after the optimizer step, per parameter.
    """

    step_s: float
    accumulation_s: float
    core_share: float
    cast_s: float
