"""All candidates of one tensor degree, and which of them fit a memory.

As `phaze_opt.placement.least_splits` takes them; `collected_candidates` fills them in. Nothing here
depends on the accelerator but the memory that a stage may fill.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.optimizers import Optimizer
from phaze_opt.passes.layer_cost import local_frozen_parameters
from phaze_opt.placement import least_splits as column
from phaze_opt.placement.chain_bounds import least_most
from phaze_opt.placement.chain_bytes import (
    ChainBytes,
    distinct_limits,
    for_many_designs,
    maxima,
    states_of_runs,
    sums,
)
from phaze_opt.placement.least_splits import CandidateArrays as CandidateArrays
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.pipeline import interleaved_in_flight
from phaze_opt.placement.runs import sums_of_runs

_MANY = 2**31
"""More microbatches than stages."""


@dataclass(frozen=True, eq=False)
class LeastCandidates:
    """Candidates of one tensor degree, sorted by falling `least_splits.REACH`.

    Attributes
    ----------
    schedule, optimizer
        Of the training run.
    repeated : (layers,)
        Which layers are the distinct one that is repeated most.
    own, added, every_pass, lines, held, whole, real
        See `CandidateArrays`; there is a table of ``limit`` for each of `shards`.
    kept
        What the layers hold.
    shards
        What replicas share out.
    links : (2, layers + 1)
        See `CandidateArrays`; 0 where nothing is known of them.
    ends : (layers,)
        Where a stage that begins at each layer ends at the latest; ``None`` for anywhere.
    """

    schedule: PipelineScheduleName
    optimizer: Optimizer
    repeated: BoolArray
    own: FloatArray
    added: FloatArray
    every_pass: FloatArray
    lines: FloatArray
    held: FloatArray
    whole: IntArray
    real: FloatArray
    kept: ChainBytes
    shards: tuple[Shards, ...]
    links: FloatArray
    ends: IntArray | None = None
    _fitting: dict[float, CandidateArrays] = field(default_factory=dict)

    @property
    def table_bytes(self) -> int:
        """Size of the arrays, those of all memories that were asked for included."""
        own = self.every_pass, self.lines, self.held, self.whole, self.real
        fitting = self._fitting.values()
        tables = (table for each in fitting for table in (each.limit, each.whole, each.real))
        return sum(table.nbytes for table in (*own, *tables))

    def fitting(self, usable_bytes: float) -> CandidateArrays:
        """Return the arrays of the candidates that fit a memory, each computed once."""
        if usable_bytes not in self._fitting:
            self._fitting[usable_bytes] = self._find_fitting(usable_bytes)
        return self._fitting[usable_bytes]

    def _find_fitting(self, usable_bytes: float) -> CandidateArrays:
        """Do the same."""
        interleaved = self._has_chunks(self.whole)
        # A stage holds the average at least. Without the states of all others, the tables of a
        # large network are few: there is one of hundreds of kilobytes for each number of replicas.
        fits = self._average_bytes(interleaved) <= usable_bytes
        some, which = np.unique(self.whole[fits, column.LIMIT], return_inverse=True)
        shards = tuple([self.shards[each] for each in some.tolist()])
        # A stage holds no more microbatches than there are stages from its place on, unless all.
        most = _MANY if self.schedule == "gpipe" else len(self.own)
        limit, tables = _limits(self.kept, self.optimizer, shards, usable_bytes, most)
        if self.ends is not None:
            limit = limit.copy()
            limit[:, np.arange(limit.shape[2]) > self.ends[:, np.newaxis]] = 0
        whole = self.whole.copy()
        whole[fits, column.LIMIT] = tables[which]
        runs = fits & ~interleaved
        fits[runs] = column.fitting(self.lines, self.held, limit, whole[runs])
        ways, whole, real = self.whole[fits, column.LIMIT], whole[fits], self.real[fits]
        real[:, column.MOST_REPEATED] = self._most_repeated(ways, whole, limit)
        shared = self.own, self.added, self.links, self.every_pass, self.lines, self.held
        return CandidateArrays(*shared, limit, whole, real)

    def _most_repeated(self, shards: IntArray, whole: IntArray, limit: IntArray) -> FloatArray:
        """Return how many repeated layers the stage with most of them has at least, by memory."""
        counts = sums_of_runs(self.repeated.astype(np.float64))
        stages, microbatches = whole[:, column.STAGES], whole[:, column.MICROBATCHES]
        # Chunks of one stage lie apart, so that no memory of runs of layers bounds them.
        least: FloatArray = np.ceil(counts[0, -1] / stages)
        runs = np.flatnonzero(~self._has_chunks(whole))
        # Where there are fewer microbatches than stages, or all are in flight, the fewest of those
        # that share as much out bound.
        few = runs[(microbatches[runs] < stages[runs]) | (self.schedule == "gpipe")]
        fewest = np.full(len(self.shards), _MANY)
        np.minimum.at(fewest, shards[few], microbatches[few])
        in_flight = np.full(len(whole), _MANY)
        in_flight[few] = fewest[shards[few]]
        runs = runs[np.lexsort((in_flight[runs], whole[runs, column.LIMIT]))]
        each = whole[runs, column.LIMIT], in_flight[runs], stages[runs]
        least[runs] = least_most(counts, limit, *each, self.schedule == "gpipe")
        return least

    def _has_chunks(self, whole: IntArray) -> BoolArray:
        """Whether the stages of candidates may have several chunks."""
        in_v = whole[:, column.SPLITS_BACKWARD] == column.IN_V
        return np.asarray((whole[:, column.CHUNKS] > 1) | in_v)

    def _average_bytes(self, interleaved: BoolArray) -> FloatArray:
        """Bound what the fullest stage of every candidate holds by the average stage.

        With one microbatch in flight, where chunks of a stage do not hold more.
        """
        whole, held = self.whole, np.ones(len(self.whole))
        for row in np.flatnonzero(interleaved & (whole[:, column.CHUNKS] > 1)).tolist():
            stages, microbatches, chunks = whole[row, : column.LIMIT].tolist()
            held[row] = float(interleaved_in_flight(stages, microbatches, chunks).min()) / chunks
        states = np.array([each.state_bytes(self.optimizer) for each in self.shards])
        frozen = local_frozen_parameters(self.kept.layers) * self.optimizer.held_bytes[0]
        # What copies are not there, on every stage that has a tied weight.
        wide = sum(self.kept.parameters.wide) * min(self.optimizer.wide_bytes, 0.0)
        stash = held * float(sum(self.kept.stash_bytes))
        all_bytes = float(self.own.sum()) * states[whole[:, column.LIMIT]] + frozen + stash + wide
        return np.asarray(all_bytes / whole[:, column.STAGES] * (1.0 - 1e-12))


@for_many_designs
def _limits(
    kept: ChainBytes,
    optimizer: Optimizer,
    shards: tuple[Shards, ...],
    usable_bytes: float,
    most: int,
) -> tuple[IntArray, IntArray]:
    """Return `distinct_limits` of layers: no network or rate changes them, but they are large."""
    state_bytes = states_of_runs(kept.parameters, optimizer, shards)
    working, stash = maxima(kept.transient_bytes), sums(kept.stash_bytes)
    return distinct_limits(state_bytes, working, stash, usable_bytes, most)
