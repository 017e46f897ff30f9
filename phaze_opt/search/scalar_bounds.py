"""The bounds of boxes once more: one operator, one candidate at a time, in plain Python.

A certificate is checked against these, so that an error of an array or of a compiled loop shows.
They share with `phaze_opt.least_layers` and `phaze_opt.placement.least` what is no bound: captured
graphs, the cost of a collective, and the table of degrees of parallelism with the memory that each
needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.costed_point import chip_rates, training_as_fused
from phaze_opt.estimator.attention import visible_scores
from phaze_opt.estimator.cache_reuse import reads_again
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_costs import copies_s
from phaze_opt.layer_passes import Chip, default_fusion, fuse_once, graphs_of
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_cost
from phaze_opt.placement import least_splits as column
from phaze_opt.placement.least import ChipRates
from phaze_opt.placement.least_candidates import CandidateArrays
from phaze_opt.placement.placement_problem import s_per_parameter
from phaze_opt.search.bounds import Bounded, Bounds
from phaze_opt.search.objective import RunInputs
from phaze_opt.training import OPTIMIZERS, Training
from phaze_opt.workload.graph import Operator, OperatorGraph, WorkloadVariant


class ScalarBounds(Bounds):
    """Bounds of boxes as `Bounds` has them, but for the order of sums."""

    def least_batch_s(self, inputs: RunInputs, some: Bounded) -> FloatArray:
        """Bound the time of a batch from below; see `Bounds.least_batch_s`."""
        assert some.rooflines
        found = [
            self._of_chip(inputs, chip, sizes)
            for chip, sizes in zip(some.architectures, some.hbm_bytes.T.tolist(), strict=True)
        ]
        return np.array(found).T.reshape(some.hbm_bytes.shape)

    def _of_chip(
        self, inputs: RunInputs, chip: Accelerator, hbm_bytes: Sequence[int]
    ) -> list[float]:
        """Bound the time of a batch with every size of the HBM."""
        cluster, training = inputs.cluster, inputs.training
        fusion = default_fusion(chip)
        as_fused = training_as_fused(training, fusion)
        rates = chip_rates([Chip(chip, cluster, fusion)], as_fused)
        usable = chip.calibration.usable_hbm_share
        usable *= 1.0 - self.study.spec.constraints.min_memory_margin
        best = [math.inf] * len(hbm_bytes)
        for variant in self.variants(inputs):
            layers = _all(variant)
            passes_s = [_layer_s(variant, layer, chip, cluster, training) for layer in layers]
            placement = self._placement(inputs.capture, variant, cluster, as_fused, fusion)
            for size, capacity in enumerate(hbm_bytes):
                arrays = placement.candidates_within(capacity * usable)
                least_s = _batch_s(passes_s, layers, arrays, as_fused, rates, best[size])
                best[size] = min(best[size], least_s)
        return best


def _all(variant: WorkloadVariant) -> tuple[int, ...]:
    """Return which distinct layer each layer is."""
    return tuple(index for _, index in variant.nodes)


@lru_cache(maxsize=4096)
def _layer_s(
    variant: WorkloadVariant, index: int, chip: Accelerator, cluster: Cluster, training: Training
) -> tuple[float, float]:
    """Bound forward, and backward with recompute, of one distinct layer."""
    layer = variant.layers[index]
    fusion = default_fusion(chip)
    passes = {
        name: _pass_s(fuse_once(graph, fusion), chip, cluster, training, variant.tensor_parallel)
        for name, graph in graphs_of(layer, training).items()
    }
    again_s = {
        "none": 0.0,
        "selective": passes.get("recompute", 0.0),
        "full": passes["forward"],
    }[training.recompute]
    copies = copies_s(layer.parameters, training, chip.sustained_hbm_bytes_per_s)
    return passes["forward"] + copies[0], passes["backward"] + copies[1] + again_s


@dataclass(frozen=True)
class _Times:
    """Seconds of one operator at the peak rates of all cores together."""

    tensor_s: float
    vector_s: float
    glb_s: float
    hbm_s: float
    link_s: float
    overhead_s: float

    @property
    def latency_s(self) -> float:
        """The longest of them, plus what every operator takes."""
        return max(_resources_s(self)) + self.overhead_s

    def with_hbm(self, hbm_s: float) -> float:
        """Return the latency if the HBM takes less."""
        others = max(self.tensor_s, self.vector_s, self.glb_s, self.link_s)
        return max(others, hbm_s) + self.overhead_s


def _resources_s(times: _Times) -> tuple[float, ...]:
    """Return the times of the resources."""
    return times.tensor_s, times.vector_s, times.glb_s, times.hbm_s, times.link_s


def _pass_s(
    graph: OperatorGraph, chip: Accelerator, cluster: Cluster, training: Training, tensor: int
) -> float:
    """Bound one pass."""
    chunked = tensor if training.overlap == "all" else 1
    times = [_operator(one, chip, cluster, tensor, chunked) for one in graph.operators]
    rate = chip.sustained_hbm_bytes_per_s

    def in_turn(kept_bytes: Sequence[float]) -> float:
        return math.fsum(
            one.with_hbm(max(one.hbm_s - kept / rate, 0.0))
            for one, kept in zip(times, kept_bytes, strict=True)
        )

    if not chip.concurrent_operators:
        served = [0.0] * len(times)
        if training.residency:
            reuse = reads_again(graph).served_by(float(chip.glb_bytes))
            for reader, size in zip(reuse.reader.tolist(), reuse.bytes.tolist(), strict=True):
                served[reader] += size
        return in_turn(served)
    end_s = [one.latency_s for one in times]
    for before, after, _ in sorted(graph.edges, key=lambda edge: edge[1]):
        end_s[after] = max(end_s[after], end_s[before] + times[after].latency_s)
    sums = [math.fsum(of_resource) for of_resource in zip(*map(_resources_s, times), strict=True)]
    least_s = max([*end_s, *sums], default=0.0)
    if training.residency and chunked == 1:
        least_s = min(least_s, in_turn(_kept_bytes(graph, chip.glb_bytes)))
    return least_s


def _operator(
    operator: Operator, chip: Accelerator, cluster: Cluster, tensor: int, chunked: int
) -> _Times:
    """Bound one operator."""
    calibration, clock_hz = chip.calibration, chip.sustained_clock_hz
    macs = sum(gemm.m * gemm.n * gemm.k * gemm.batch for gemm in operator.gemms)
    visible = 1.0
    if operator.attention is not None:
        visible = visible_scores(operator.attention) / operator.attention.elements
    lanes_s = 0.0
    for work in operator.vector:
        row = vector_operator(work.kind)
        elements = float(work.elements)
        exponential = 0.0
        if operator.attention is not None:
            exponential = row.exponential_cycles
            if work.elements == operator.attention.elements:
                elements = visible_scores(operator.attention)
        cycles = row.cycles - exponential
        lanes = chip.num_vc * chip.pe_vc
        if exponential > 0.0 and calibration.exponentials_per_cycle is not None:
            lanes_s += elements / (chip.num_vc * calibration.exponentials_per_cycle * clock_hz)
        else:
            cycles += exponential
        lanes_s += elements * cycles / (lanes * clock_hz)
    exposed_s = 0.0
    if operator.attention is not None:
        exposed_s = (1.0 - calibration.attention_overlap) * lanes_s
    link_s = 0.0
    if operator.collective is not None:
        kind, size_bytes = operator.collective.kind, operator.collective.size_bytes
        link_s = collective_cost(kind, size_bytes, tensor, cluster).time_s
        if chunked > 1:
            share = calibration.collective_core_share
            link_s *= share + (1.0 - share) / chunked
    moved_bytes = operator.read_bytes + operator.write_bytes
    arrays = chip.num_tc * chip.pe_x * chip.pe_y
    works = bool(operator.gemms or operator.vector or operator.collective)
    return _Times(
        tensor_s=macs * visible / (arrays * chip.array_clock_hz) + exposed_s,
        vector_s=lanes_s,
        glb_s=moved_bytes / (chip.glb_bytes_per_cycle * clock_hz),
        hbm_s=moved_bytes / chip.sustained_hbm_bytes_per_s,
        link_s=link_s,
        overhead_s=calibration.operator_overhead_s if works else 0.0,
    )


_MOST_SUBSET = 10
"""As `phaze_opt.estimator.least_traffic` has it."""


@lru_cache(maxsize=4096)
def _kept_bytes(graph: OperatorGraph, glb_bytes: int) -> tuple[float, ...]:
    """Return the most that every operator saves while tensors stay, whatever the others need."""
    accesses: list[list[tuple[float, float]]] = [[] for _ in graph.operators]
    for tensor in kept_tensors(graph):
        writers = () if tensor.writer is None or tensor.outlives else (tensor.writer,)
        for access in (*writers, *tensor.readers):
            accesses[access.operator].append((float(tensor.size_bytes), access.bytes))
    return tuple(_most_saved(own, glb_bytes) for own in accesses)


def _most_saved(own: Sequence[tuple[float, float]], room_bytes: int) -> float:
    """Return the most bytes that a set of tensors saves which fits together."""
    if len(own) > _MOST_SUBSET:
        return math.fsum(saved for size, saved in own if size <= room_bytes)
    sets = (chosen for count in range(len(own) + 1) for chosen in combinations(own, count))
    return max(
        math.fsum(saved for _, saved in chosen)
        for chosen in sets
        if math.fsum(size for size, _ in chosen) <= room_bytes
    )


def _batch_s(
    passes_s: Sequence[tuple[float, float]],
    distinct: Sequence[int],
    arrays: CandidateArrays,
    training: Training,
    rates: ChipRates,
    known_s: float,
) -> float:
    """Bound the time of a batch over all candidates; ``known_s`` where none is shorter.

    Parameters
    ----------
    passes_s
        Forward, and backward with recompute, of every layer.
    distinct
        Which distinct layer each is.
    """
    bandwidth = float(rates.hbm_bytes_per_s[0])
    step_s = float(
        s_per_parameter(training.step_bytes, bandwidth, float(rates.step_parameters_per_s[0]))
    )
    accumulation_s = float(
        s_per_parameter(
            OPTIMIZERS[training.optimizer].accumulation_bytes,
            bandwidth,
            float(rates.accumulation_parameters_per_s[0]),
        )
    )
    core_share = float(rates.collective_core_share[0])
    most = max(range(max(distinct) + 1), key=distinct.count)
    work = _Work(passes_s, arrays, [at for at, index in enumerate(distinct) if index == most])
    best_s = known_s
    for whole, real in zip(arrays.whole.tolist(), arrays.real.tolist(), strict=True):
        if work.total_s / real[column.REACH] >= best_s:
            break  # candidates come by falling reach
        overlaps, several = whole[column.OVERLAPS] == 1, whole[column.MICROBATCHES] > 1
        candidate = _Candidate(
            work,
            whole,
            real,
            share=core_share if overlaps else 1.0,
            step_s=step_s / real[column.OPTIMIZER_SHARDS],
            accumulation_s=accumulation_s / real[column.GRADIENT_SHARDS] if several else 0.0,
        )
        best_s = min(best_s, candidate.least_s(best_s))
    return best_s


class _Work:
    """What all candidates of one chip share."""

    def __init__(
        self, passes_s: Sequence[tuple[float, float]], arrays: CandidateArrays, repeated: list[int]
    ) -> None:
        self.passes_s = passes_s
        self.arrays = arrays
        self.total_s = math.fsum(forward + backward for forward, backward in passes_s)
        self.own = math.fsum(arrays.own.tolist())
        self.first = repeated[0]
        self.count = len(repeated)
        self.fewest_own = min(float(arrays.own[at]) for at in repeated)


@dataclass(frozen=True)
class _Candidate:
    """One candidate on one chip; the columns are those of `phaze_opt.placement.least_splits`."""

    work: _Work
    whole: Sequence[int]
    real: Sequence[float]
    share: float
    step_s: float
    accumulation_s: float

    def least_s(self, enough_s: float) -> float:
        """Bound the time of a batch; what is at least ``enough_s`` need not be exact."""
        stages, microbatches = self.whole[column.STAGES], self.whole[column.MICROBATCHES]
        if microbatches * self.work.total_s / stages >= enough_s:
            return enough_s
        overlapping = self.whole[column.OVERLAPS] == 1 and self.whole[column.EVERY_PASS] >= 0
        ways = ((0, 0), (1, 0), (0, 1), (1, 1)) if overlapping else ((0, 0),)
        return max(self._least_of_way(way) for way in ways)

    def _least_of_way(self, way: tuple[int, int]) -> float:
        """Bound the time if a queue takes its share of each pass, or each pass of the queue."""
        forward_s = [self._in_pass(0, way[0], at) for at in self._layers()]
        backward_s = [
            self._in_pass(1, way[1], at) + self.accumulation_s * float(self.work.arrays.own[at])
            for at in self._layers()
        ]
        least_s = self._at_once_s(math.fsum(forward_s), math.fsum(backward_s))
        if self.whole[column.CHUNKS] == 1:
            least_s = max(least_s, self._pipelined_s(forward_s, backward_s))
        return least_s

    def _layers(self) -> range:
        return range(len(self.work.passes_s))

    def _in_pass(self, row: int, queued: int, at: int) -> float:
        """Return what one layer counts in a pass, with what runs beside it."""
        seconds = self.work.passes_s[at][row] * (self.share if queued else 1.0)
        group = self.whole[column.EVERY_PASS]
        if group >= 0:
            sums = self.work.arrays.every_pass[group, row]
            seconds += float(sums[at + 1] - sums[at]) * (1.0 if queued else self.share)
        return seconds

    def _sent_s(self, row: int, parameters: float) -> float:
        """Return the time of the cheapest algorithm for some parameters."""
        if row < 0 or parameters <= 0.0:
            return 0.0
        root = math.sqrt(parameters)
        return min(
            float(line[0]) + parameters * float(line[1]) + root * float(line[2])
            for line in self.work.arrays.lines[row]
        )

    def _first_tail_s(self) -> float:
        """Return what follows the last backward of a first stage that has one layer."""
        parameters, tied = (float(row[0, 1]) for row in self.work.arrays.held)
        sent_s = self._sent_s(self.whole[column.SYNCHRONISED], parameters)
        tail_s = parameters * self.step_s + self.share * sent_s
        if self.whole[column.OVERLAPS] == 0:
            tail_s += self._sent_s(self.whole[column.GATHERED], parameters)
        if self.whole[column.STAGES] > 1 and tied > 0.0:
            tail_s += self.real[column.EXCHANGE_LATENCY_S]
            tail_s += tied * self.real[column.EXCHANGE_S_PER_PARAMETER]
            tail_s += math.sqrt(tied) * self.real[column.EXCHANGE_S_PER_ROOT]
        return tail_s

    def _at_once_s(self, forward_s: float, backward_s: float) -> float:
        """Bound by the average stage; see `least_times._at_once_s`."""
        stages, microbatches = self.whole[column.STAGES], self.whole[column.MICROBATCHES]
        messages = stages * self.whole[column.CHUNKS] - 1
        forward_s += messages * self.real[column.ACTIVATION_S]
        backward_s += messages * self.real[column.GRADIENT_S]
        saving_s = self.work.own * self.accumulation_s
        once_s = forward_s + backward_s - saving_s
        busy_s = microbatches * (forward_s + backward_s) - saving_s
        sent_s = self.real[column.MEAN_SYNCHRONISATION_S]
        step_s = self.work.own * self.step_s / stages
        least_s = busy_s / stages + self.share * sent_s
        if self.whole[column.CHUNKS] > 1:
            before_s = max((microbatches - stages) * backward_s - saving_s, 0.0)
            before_s += microbatches * forward_s
            return max(once_s, max(least_s, before_s / stages + sent_s) + step_s)
        hidden_s = (1.0 - self.share) * backward_s
        least_s = max(least_s, (busy_s - hidden_s) / stages + sent_s)
        rounds_s = (microbatches - 1) * backward_s + (microbatches - self._in_flight()) * forward_s
        return max(least_s + step_s, once_s + rounds_s / stages + self._first_tail_s())

    def _in_flight(self) -> int:
        """Return the microbatches in flight at the first stage before its first backward."""
        if self.whole[column.GPIPE]:
            return 1
        return min(self.whole[column.STAGES], self.whole[column.MICROBATCHES])

    def _pipelined_s(self, forward: Sequence[float], backward: Sequence[float]) -> float:
        """Bound by what pipelines wait for; see `least_times._pipelined_s`."""
        stages, microbatches = self.whole[column.STAGES], self.whole[column.MICROBATCHES]
        first_tail_s, work = self._first_tail_s(), self.work
        saving_s = work.own * self.accumulation_s
        received_s = (stages - 1) * (self.real[column.ACTIVATION_S] + self.real[column.GRADIENT_S])
        once_s = math.fsum(forward) + math.fsum(backward) + received_s
        least_s = (once_s - saving_s / microbatches) / self.real[column.REACH] + first_tail_s
        once_s -= saving_s
        rounds, repeated = microbatches - 1.0, self.real[column.MOST_REPEATED]
        in_flight, own = self._in_flight(), work.fewest_own
        one_s = forward[work.first]
        other_s = backward[work.first]
        other_s -= (float(work.arrays.own[work.first]) - own) * self.accumulation_s
        again_s = rounds * other_s + (microbatches - in_flight) * one_s
        least_s = max(least_s, once_s + repeated * again_s + first_tail_s)
        row = self.whole[column.SYNCHRONISED]
        sent_s = self._sent_s(row, repeated * own)
        sent_s = max(self.share * sent_s, sent_s - (1.0 - self.share) * repeated * other_s)
        load_s = microbatches * (one_s + other_s) - own * self.accumulation_s
        least_s = max(least_s, repeated * (load_s + own * self.step_s) + max(sent_s, 0.0))
        if again_s <= 0.0:
            return least_s
        weight = (stages - in_flight) / again_s
        if in_flight > 1 and one_s > 1e-9 * again_s:
            weight += math.log(rounds * (other_s + one_s) / again_s) / one_s
        else:
            weight += (in_flight - 1) / again_s
        each_s = own * self.step_s
        if row >= 0:
            begin = 0.0 if work.first == 0 else float(work.arrays.held[0, 0, 1])
            more_s = self._sent_s(row, begin + work.count * own) - self._sent_s(row, begin)
            each_s += self.share * more_s / work.count
        tail_s = 0.0 if work.first == 0 else first_tail_s
        others = weight + max(0.0, 1.0 - each_s * weight) / (again_s + each_s)
        return max(least_s, once_s + tail_s + work.count / others)
