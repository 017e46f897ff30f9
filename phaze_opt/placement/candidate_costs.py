"""Costs of the stages of any degrees of parallelism, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType
from typing import Any

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.degrees import REPLICAS_INSIDE, RankOrder
from phaze_opt.network.cluster import Cluster, outermost_level
from phaze_opt.network.collective import has_ranges, rising_starts
from phaze_opt.network.groups import whole_units
from phaze_opt.network.message import message_over, message_term, split_message_terms
from phaze_opt.network.term import Term
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.layer_cost import LayerPasses
from phaze_opt.placement.candidates import (
    Candidate,
    CandidateGrid,
    DeepestPipelines,
    candidate_grids,
)
from phaze_opt.placement.chain_bounds import Classes, least_tail_terms
from phaze_opt.placement.chain_bytes import (
    MOST_LAYERS,
    ChainParameters,
    for_many_designs,
    not_elsewhere,
    parameters_of_runs,
    whole_parameters_of_runs,
)
from phaze_opt.placement.costs import DegreeRuns, StageCosts, stage_costs
from phaze_opt.placement.even import even_starts
from phaze_opt.placement.every_pass import exchanged_by_classes_s
from phaze_opt.placement.fitting_stages import fitting_stages
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.pipeline import alone_share, held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.size import MOST_KEPT_BYTES, TABLES_OF_CANDIDATE, table_bytes
from phaze_opt.placement.synchronisation import (
    ReplicaGroup,
    ReplicatedLayers,
    synchronisation_kind,
    synchronisations_s,
)
from phaze_opt.placement.zero_bubble import KnownOrders

_Key = tuple[int, int, int, int, int, Term, bool]

Runs = EllipsisType | tuple[IntArray, IntArray]
"""Runs of layers, that is possible stages, by first and last + 1 layer; all of them by default."""

_ROUNDING = 1e-9
"""Relative margin of a bound whose sums are in another order."""


@dataclass(frozen=True, eq=False)
class StageWork:
    """What every possible stage does, as the replay of the pipeline takes it.

    All tables have shape ``(layers, layers + 1)``, see `phaze_opt.placement.costs`.

    Attributes
    ----------
    stages
        What they do without the communication of replicas.
    forward_s, backward_s
        Of one microbatch, exposed communication included.
    head_s
        Before which the first forward cannot start: weights come in (ZeRO 1 and 2).
    """

    stages: StageCosts
    forward_s: FloatArray
    backward_s: FloatArray
    head_s: FloatArray

    @cached_property
    def load_s(self) -> FloatArray:
        """Forward and backward together, of a microbatch after the first."""
        stages = self.stages
        if self.forward_s is stages.forward_work_s and self.backward_s is stages.backward_work_s:
            return stages.load_s
        return self.forward_s + self.backward_s


class CandidateCosts:
    """Costs of the stages of any candidate, each computed once."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self._forget_tables()
        self.optimizer = problem.training.state
        self.schedule = problem.training.schedule_of_chunk
        self._messages: dict[tuple[int, int], Term] = {}
        self._keys: dict[Candidate, _Key] = {}
        self.orders: KnownOrders = {}
        self._work_of_layers_s: dict[int, tuple[float, float]] = {}

    def _forget_tables(self) -> None:
        """Start without tables."""
        self._runs: dict[tuple[int, float | None], DegreeRuns] = {}
        self._stages: dict[tuple[Any, ...], StageCosts] = {}
        self._stages_of: dict[Candidate, StageCosts] = {}
        self._least_stages: dict[CandidateGrid, StageCosts] = {}
        self._replicated: dict[int, ReplicatedLayers] = {}
        self._groups: dict[tuple[int, int, int, int, int], ReplicaGroup] = {}
        self._work: dict[_Key, StageWork] = {}
        self._tails: dict[_Key, FloatArray] = {}
        self._least_tails: dict[CandidateGrid, FloatArray] = {}
        self._tail_terms: dict[_Key, FloatArray] = {}

    def _make_room(self) -> None:
        """Forget the tables of single candidates where they take much memory."""
        each = TABLES_OF_CANDIDATE * table_bytes(self.layers)
        kept = max(len(self._work), len(self._stages), len(self._groups))
        if kept > max(1, MOST_KEPT_BYTES // each):
            for tables in (self._work, self._stages, self._stages_of, self._groups, self._tails):
                tables.clear()

    def release(self) -> None:
        """Forget the tables of a long chain, which take megabytes each: they can be made again."""
        if self.layers > MOST_LAYERS:
            self._forget_tables()

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return len(next(iter(self.problem.outline.layers.values())))

    @cached_property
    def no_time_s(self) -> FloatArray:
        """The table of what no stage does."""
        return np.zeros((self.layers, self.layers + 1))

    @cached_property
    def grids(self) -> tuple[CandidateGrid, ...]:
        """All candidates."""
        return candidate_grids(self.problem)

    def work_of_layers_s(self, tensor: int) -> tuple[float, float]:
        """Return the work of one microbatch at a degree: of all layers, and of the largest."""
        if tensor not in self._work_of_layers_s:
            kinds, work_s = self.problem.kinds_of(tensor), self._kinds_s(tensor)
            all_s = sum([own_s * count for own_s, count in zip(work_s, kinds.counts, strict=True)])
            self._work_of_layers_s[tensor] = all_s, max(work_s)
        return self._work_of_layers_s[tensor]

    def _kinds_s(self, tensor: int) -> list[float]:
        """Return the work of one microbatch on a layer of every kind."""
        runs = self._degree_runs(tensor, self._least_paired)
        each_s = [runs.column(f"{name}.seconds") for name in LayerPasses._fields]
        work_s: list[float] = np.add.reduce(each_s)[
            list(self.problem.kinds_of(tensor).first)
        ].tolist()
        return work_s

    def least_share_s(self, grid: CandidateGrid) -> FloatArray:
        """Bound the work of the busiest stage on one microbatch, whatever the split.

        That of the average stage, and of the layers of each kind that the stage with most of them
        has at least. Of every class of a grid.
        """
        kinds = self.problem.kinds_of(grid.tensor)
        all_s, _ = self.work_of_layers_s(grid.tensor)
        share_s = all_s / grid.pipeline
        for count, own_s in zip(kinds.counts, self._kinds_s(grid.tensor), strict=True):
            share_s = np.maximum(share_s, np.ceil(count / grid.pipeline) * own_s)
        return np.asarray(share_s)

    def microbatches(self, data: int) -> int:
        """Return how many microbatches one replica runs per batch."""
        return self.problem.training.microbatches(data)

    def chunks(self, candidate: Candidate) -> int:
        """Return the chunks of every stage; a single stage has nothing to interleave."""
        return self.problem.training.interleave if candidate.pipeline > 1 else 1

    def can_interleave(self, candidate: Candidate) -> bool:
        """Whether layers and microbatches suffice for its chunks."""
        chunks, pipeline = self.chunks(candidate), candidate.pipeline
        divides = chunks == 1 or self.microbatches(candidate.data) % pipeline == 0
        return divides and pipeline * chunks <= self.layers

    @cached_property
    def is_chain(self) -> bool:
        """Whether every layer takes what the one before it gives, and nothing else."""
        return all(destination == source + 1 for source, destination in self.problem.edges)

    def even_layout(self, candidate: Candidate, chunks: int = 1) -> Layout:
        """Cut the layers into even parts."""
        layers = self.problem.layers[candidate.tensor]
        starts = even_starts(layers, candidate.pipeline * chunks)
        return Layout.of_starts(candidate, starts, len(layers), chunks)

    def held(self, candidate: Candidate) -> IntArray:
        """Return the microbatches in flight of every stage, by place from the end."""
        microbatches = self.microbatches(candidate.data)
        return held_by_place(candidate.pipeline, microbatches, self.schedule)

    def shards(self, data: int) -> Shards:
        """Return what so many replicas share out."""
        training = self.problem.training
        return Shards.of(training.zero, training.sharing(data))

    def level(self, candidate: Candidate) -> int:
        """Return the network level of the slowest link between neighbouring stages."""
        return outermost_level(
            candidate.pipeline, self.problem.cluster, candidate.stride("pipeline")
        )

    def message(self, candidate: Candidate) -> Term:
        """Return the cost of a message to the next stage, which all devices send at once."""
        key = candidate.stride("pipeline"), candidate.pipeline
        if key not in self._messages:
            cluster = self.problem.cluster
            if candidate.pipeline == 1:
                self._messages[key] = message_over(cluster, self.level(candidate))
            else:
                self._messages[key] = message_term(cluster, *key)
        return self._messages[key]

    def group(self, candidate: Candidate) -> ReplicaGroup:
        """Return the replicas of each stage."""
        apart = candidate.stride("data"), candidate.inside, candidate.outside_stride
        key = candidate.tensor, candidate.data, *apart
        group = self._groups.get(key)
        if group is None:
            if self.layers > MOST_LAYERS:
                self._groups.clear()  # their exchanges take megabytes each
            group = ReplicaGroup(self.replicated(candidate.tensor), *key[1:])
            self._groups[key] = group
        return group

    def stages(self, candidate: Candidate) -> StageCosts:
        """Return the costs of all stages of a candidate, communication of replicas aside."""
        if candidate not in self._stages_of:
            microbatches = self.microbatches(candidate.data)
            shards = self.shards(candidate.shares)
            alone = 1.0
            if self.problem.training.pairs_microbatches:
                alone = alone_share(candidate.pipeline, microbatches, self.chunks(candidate))
            self._stages_of[candidate] = self._table(
                candidate.tensor, self.message(candidate), shards, microbatches > 1, 1.0 - alone
            )
        return self._stages_of[candidate]

    def least_stages(self, grid: CandidateGrid) -> StageCosts:
        """Return what stages cost at least: sharing out all that ZeRO can."""
        if grid not in self._least_stages:
            message = message_over(self.problem.cluster, grid.level)
            self._least_stages[grid] = self._table(
                *(grid.tensor, message, self._most_shards(grid), grid.accumulates),
                self._least_paired if grid.accumulates else 0.0,
            )
        return self._least_stages[grid]

    def deepest_that_may_fit(self, grid: CandidateGrid) -> DeepestPipelines:
        """Return the most stages of a candidate that may fit, for every number of microbatches.

        Of a long chain, all candidates may: its tables take as long as what they would save.
        """
        if self.layers > MOST_LAYERS:
            return grid.deepest
        limits = self.optimizer, self._most_shards(grid), self.problem.hbm_usable_bytes
        fitting = fitting_stages(self.replicated(grid.tensor).held, *limits)
        return grid.deepest_that_fit(fitting)

    def _most_shards(self, grid: CandidateGrid) -> Shards:
        """Return what as many replicas share out as any candidate may have."""
        return self.shards(max(1, self.problem.cluster.devices // grid.tensor))

    @property
    def _least_paired(self) -> float | None:
        """What `DegreeRuns.paired` is where any number of microbatches may be in pairs."""
        return None if self.problem.training.pairs_microbatches else 0.0

    def _degree_runs(self, tensor: int, paired: float | None) -> DegreeRuns:
        """Return the runs of layers of a tensor degree."""
        key = tensor, paired
        if key not in self._runs:
            held = self.replicated(tensor).held
            self._runs[key] = DegreeRuns(self.problem, tensor, held, paired)
        return self._runs[key]

    def _table(
        self,
        tensor: int,
        message: Term,
        shards: Shards,
        accumulates: bool,
        paired: float | None,
    ) -> StageCosts:
        messages = [message]
        if tensor > 1 and not self.problem.training.sequence_parallel:
            # With sequence parallelism every device holds a part of its own anyway.
            messages += split_message_terms(message, tensor, self.problem.cluster)
        key = tensor, tuple(messages), shards, accumulates, paired
        if key not in self._stages:
            runs = self._degree_runs(tensor, paired)
            self._stages[key] = stage_costs(runs, messages, shards, accumulates)
        return self._stages[key]

    def work(self, candidate: Candidate) -> StageWork:
        """Return what every stage of a candidate does."""
        key = self._key(candidate)
        if key not in self._work:
            self._make_room()
            self._work[key] = self._stage_work(candidate)
        return self._work[key]

    def _stage_work(self, candidate: Candidate) -> StageWork:
        stages, group = self.stages(candidate), self.group(candidate)
        forward_s, backward_s = stages.forward_work_s, stages.backward_work_s
        head_s = self.no_time_s
        if group.zero == 3:
            forward_s = forward_s + group.forward_gather.exposed_s
        elif group.zero and group.overlaps:
            head_s = group.forward_gather.exposed_s
        if group.zero >= 2:
            gathers, reductions = group.every_backward
            backward_s = backward_s + gathers.exposed_s + reductions.exposed_s
        return StageWork(stages, forward_s, backward_s, head_s)

    def tied_exchange_s(self, candidate: Candidate) -> FloatArray:
        """Return the time in which stages that share tied weights exchange their gradients."""
        parameters = self.replicated(candidate.tensor).held.parameters
        message = self.message(candidate) if candidate.pipeline > 1 else None
        return _tied_exchange_s(parameters, message, float(self.problem.training.reduced_bytes))

    def synchronisation_s(self, candidate: Candidate, runs: Runs = ...) -> FloatArray:
        """Return the exposed synchronisation of stages' gradients after their last backwards."""
        group = self.group(candidate)
        exchange_s: FloatArray = self.tied_exchange_s(candidate)[runs]
        return exchange_s if group.zero >= 2 else exchange_s + group.synchronisation.exposed_s[runs]

    def final_gather_s(self, candidate: Candidate, ahead: bool) -> FloatArray:
        """Return the gathering of updated weights after the optimizer step (ZeRO 1 and 2).

        Parameters
        ----------
        candidate
            The degrees.
        ahead
            Whether they come in beside the next batch's first forward instead, where they may.
        """
        group = self.group(candidate)
        if group.zero in (1, 2) and not (group.overlaps and ahead):
            return group.gather_at_once_s
        return self.no_time_s

    def optimizer_s(self, candidate: Candidate, runs: Runs = ...) -> FloatArray:
        """Return the time of stages' optimizer steps, on what a replica keeps of them, and casts.

        A replica casts all weights that it has, whoever stepped them.
        """
        step_s, cast_s = self.problem.step_s_per_parameter, self.problem.cast_s_per_parameter
        shards = self.shards(candidate.shares).optimizer
        parameters = own = self.stages(candidate).held.parameters
        if shards > 1:
            parameters = whole_parameters_of_runs(self.replicated(candidate.tensor).held.parameters)
        return np.asarray(parameters[runs] * (step_s / shards) + own[runs] * cast_s)

    def tail_s(self, candidate: Candidate, runs: Runs = ...) -> FloatArray:
        """Return what stages still do after their last backwards, weights gathered ahead."""
        key = self._key(candidate)
        if key not in self._tails:
            if runs is not ...:
                return self._find_tail_s(candidate, runs)
            if self.layers > MOST_LAYERS:
                self._tails.clear()
            self._tails[key] = self._find_tail_s(candidate, ...)
        tail_s: FloatArray = self._tails[key][runs]
        return tail_s

    def _find_tail_s(self, candidate: Candidate, runs: Runs) -> FloatArray:
        """Do as `tail_s`."""
        tail_s = self.optimizer_s(candidate, runs)
        tail_s += self.synchronisation_s(candidate, runs)
        if self.group(candidate).zero in (1, 2):
            tail_s += self.final_gather_s(candidate, ahead=True)[runs]
        return tail_s

    def least_tail_term_s(self, candidate: Candidate) -> float:
        """Return the least tail term of the closed form (see `phaze_opt.placement.chain`)."""
        key = self._key(candidate)
        if key not in self._tail_terms:
            layers = self.stages(candidate).layers
            reach = self.problem.cluster.devices // (candidate.tensor * candidate.data)
            most_stages = 1 if candidate.pipeline == 1 else min(layers, reach)
            self._tail_terms[key] = least_tail_terms(
                self.tail_s(candidate), self.work(candidate).backward_s, most_stages
            )
        return float(self._tail_terms[key][candidate.pipeline])

    def least_shared_tail_term_s(self, candidate: Candidate) -> float:
        """Bound the least tail term from below, by that of fewer replicas if they take no longer.

        Of these there are few, so that many candidates share a bound.
        """
        training = self.problem.training
        shares_out = training.zero > 0 or training.holds_experts_apart(candidate.tensor)
        if shares_out or candidate.inside or not has_ranges(self.problem.cluster):
            return self.least_tail_term_s(candidate)
        starts = _shared_starts(self.problem.cluster, candidate.stride("data"))
        data = int(starts[np.searchsorted(starts, candidate.data, side="right") - 1])
        fewer = Candidate.of(candidate.degrees._replace(data=data), candidate.order)
        return self.least_tail_term_s(fewer)

    def _key(self, candidate: Candidate) -> _Key:
        """Return what work and tails depend on; a single stage shares nothing with another."""
        key = self._keys.get(candidate)
        if key is None:
            key = self._keys[candidate] = (
                candidate.tensor,
                candidate.data,
                candidate.shares,
                candidate.stride("data"),
                candidate.inside,
                self.message(candidate),
                candidate.pipeline == 1,
            )
        return key

    def added_up(self, tensor: int) -> int:
        """Count what `HeldBytes.added` is of all layers, tied parameters with each holder."""
        parameters = self.replicated(tensor).held.parameters
        if self.problem.training.zero >= 2:
            return sum(parameters.own) + sum(parameters.elsewhere)
        return sum(parameters.own) - sum(parameters.accumulated)

    def replicated(self, tensor: int) -> ReplicatedLayers:
        """Return the layers of one tensor degree, as replicas exchange them."""
        if tensor not in self._replicated:
            self._replicated[tensor] = ReplicatedLayers(self.problem, tensor)
        return self._replicated[tensor]

    def classes(self, grid: CandidateGrid) -> Classes:
        """Return the classes of a grid, as bounds take them."""
        tails_s, rows = self.least_tails_s(grid)
        each = grid.pipeline, grid.microbatches, grid.even_share, self._least_of_stages_s(grid)
        return Classes(tails_s, rows, *each, self.schedule == "gpipe")

    def _least_of_stages_s(self, grid: CandidateGrid) -> FloatArray:
        """Bound what all stages take for a microbatch by what replicas exchange in every pass.

        Of every class; 0 where they exchange nothing then. A pass takes at least its exchanges, and
        its compute with what hidden exchanges take of the cores.
        """
        training = self.problem.training
        if training.zero < 2 or training.zero_group:
            return np.zeros(len(grid.data))
        held = self.replicated(grid.tensor).held.parameters
        sent_s = exchanged_by_classes_s(grid, self.problem.cluster, training, held)
        share = self.problem.collective_core_share if training.overlap != "none" else 1.0
        layers_s, _ = self.work_of_layers_s(grid.tensor)
        return np.maximum(sent_s, layers_s + share * sent_s) * (1.0 - _ROUNDING)

    def least_tails_s(self, grid: CandidateGrid) -> tuple[FloatArray, IntArray]:
        """Bound the tails of all possible first stages of a grid's candidates from below.

        Returns
        -------
        tails_s : (distinct numbers of replicas, layers)
            Of a first stage of 1, 2, … layers.
        rows : (classes,)
            The row of every class, of its fewest replicas.
        """
        data, rows = grid.distinct_data
        if grid not in self._least_tails:
            shared = data.copy()
            if grid.shares_out:
                np.maximum.at(shared, rows, grid.most_data)
            self._least_tails[grid] = self._least_tails_s(grid.tensor, grid.order, data, shared)
        return self._least_tails[grid], rows

    def _least_tails_s(
        self, tensor: int, order: RankOrder, data: IntArray, shared: IntArray
    ) -> FloatArray:
        """Compute the same for one tensor degree and rank order.

        Parameters
        ----------
        data, shared
            Numbers of replicas, and the most over which any of their classes shares out states.
        """
        training, layers = self.problem.training, self.replicated(tensor)
        parameters = layers.parameters[0, 1:] + np.cumsum(not_elsewhere(layers.held.parameters))
        step_s, cast_s = self.problem.step_s_per_parameter, self.problem.cast_s_per_parameter
        shards = shared if training.zero >= 1 else np.ones_like(data)
        tails_s: FloatArray = parameters * (step_s / shards + cast_s)[:, np.newaxis]
        shared_out = training.holds_experts_apart(tensor)
        if order != REPLICAS_INSIDE or training.zero >= 2 or shared_out:
            return tails_s
        lines = (synchronisation_kind(training.zero), self.problem.cluster, tensor, data.tobytes())
        each = float(training.reduced_bytes)
        sync_s, queued_s = synchronisations_s(layers.held.parameters, each, *lines)
        if training.hides_gradients:
            # At least as much is free as where the tensor-parallel group uses no level of theirs.
            left_s = np.maximum.accumulate(queued_s - layers.before_s, axis=1)
            sync_s = np.minimum(sync_s, left_s)
        return tails_s + sync_s


@lru_cache(maxsize=1024)
def _shared_starts(cluster: Cluster, stride: int) -> IntArray:
    """See `phaze_opt.network.collective.rising_starts`, powers of two among them."""
    powers = 2 ** np.arange(cluster.devices.bit_length(), dtype=np.int64)
    return rising_starts(cluster, whole_units(cluster, stride), powers, cluster.devices)


@for_many_designs
def _tied_exchange_s(
    parameters: ChainParameters, message: Term | None, gradient_bytes: float
) -> FloatArray:
    """Return the exchange of tied gradients by every stage, with a message if others hold them."""
    _, shared = parameters_of_runs(parameters)
    exchange_s = np.zeros(shared.shape)
    if message is not None:
        # An all-reduce between two stages: one message each way per half of the gradients.
        held = shared > 0
        exchange_s[held] = 2.0 * message.seconds(shared[held] * gradient_bytes / 2.0)
    return exchange_s
