"""The bound of the time of a batch, one candidate at a time; see `scalar_bounds`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from phaze_opt.placement import least_splits as column
from phaze_opt.placement.least_candidates import CandidateArrays
from phaze_opt.placement.placement_problem import ChipRates, s_per_parameter
from phaze_opt.training import OPTIMIZERS, Training


def batch_s(
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
