"""The bound of the time of a batch with one candidate, in plain Python; see `scalar_bounds`.

By the average stage, by what pipelines wait for, and over all splits of the layers into stages:
written apart from `phaze_opt.placement.least_times` and `phaze_opt.placement.least_splits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from phaze_opt.on_demand import cached_property
from phaze_opt.whole_space.scalar_candidates import (
    ChipSeconds,
    Line,
    ScalarCandidate,
    ScalarCandidates,
)

_PRECISION = 1e-4
"""Relative distance up to which the least time of a split is found."""
_SMALLEST_S = 1e-12
"""Less than any time."""
_MOST_S = 1e300
"""More than any time that a split takes, memory aside."""


@dataclass(frozen=True)
class SplitBatch:
    """One candidate on one chip; ``way`` says of which passes the queue's share counts.

    Attributes
    ----------
    forward_s, backward_s
        Sums over the layers before each.
    """

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    candidates: ScalarCandidates
    candidate: ScalarCandidate
    chip: ChipSeconds
    way: tuple[int, int] = (0, 0)

    @cached_property
    def share(self) -> float:
        """What communication takes of the compute beside it."""
        return self.chip.core_share if self.candidate.overlaps == 1 else 1.0

    @cached_property
    def step_s(self) -> float:
        """Optimizer step per parameter."""
        return self.chip.step_s / self.candidate.optimizer_shards

    @cached_property
    def accumulation_s(self) -> float:
        """Accumulation per parameter and microbatch, where there are several."""
        several = self.candidate.microbatches > 1
        return self.chip.accumulation_s / self.candidate.gradient_shards if several else 0.0

    @cached_property
    def forward(self) -> Sequence[float]:
        """Sums of the forwards, with what runs beside them."""
        return self._with_queue(self.forward_s, 0)

    @cached_property
    def backward(self) -> Sequence[float]:
        """Sums of the backwards, with what runs beside them and the accumulation."""
        sums = self._with_queue(self.backward_s, 1)
        if self.accumulation_s == 0.0:
            return sums
        pairs = zip(sums, self.candidates.own, strict=True)
        return [seconds + own * self.accumulation_s for seconds, own in pairs]

    def _with_queue(self, sums: Sequence[float], row: int) -> Sequence[float]:
        group = self.candidate.every_pass
        if group < 0:
            return sums
        compute, queue = (self.share, 1.0) if self.way[row] else (1.0, self.share)
        pairs = zip(sums, self.candidates.every_pass[group][row], strict=True)
        return [compute * seconds + queue * sent_s for seconds, sent_s in pairs]

    def sent_s(self, row: int, parameters: float) -> float:
        """Return the time of the cheapest algorithm for some parameters."""
        if row < 0 or parameters <= 0.0:
            return 0.0
        root = math.sqrt(parameters)
        return min(
            latency_s + parameters * each + root * of_root
            for latency_s, each, of_root in self.candidates.lines[row]
        )

    def following_s(self, begin: int, end: int, backward_s: float) -> float:
        """Return what follows the last backward of the stage of some layers."""
        if (begin, end) not in self._known_tails:
            self._known_tails[begin, end] = self._tail(begin, end)
        fixed_s, sent_s = self._known_tails[begin, end]
        return fixed_s + max(self.share * sent_s, sent_s - (1.0 - self.share) * backward_s)

    @cached_property
    def _known_tails(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Those of this candidate that were asked for, whatever the passes are."""
        return self.candidates.tails.setdefault((self.candidate, self.chip), {})

    def _tail(self, begin: int, end: int) -> tuple[float, float]:
        """Return what follows the last backward in any case, and what may run beside it."""
        one = self.candidate
        parameters, tied = (held[begin][end] for held in self.candidates.held)
        sent_s = self.sent_s(one.synchronised, parameters)
        tail_s = parameters * self.step_s
        if one.overlaps == 0:
            tail_s += self.sent_s(one.gathered, parameters)
        if one.stages > 1 and tied > 0.0:
            tail_s += one.exchange_latency_s + tied * one.exchange_s_per_parameter
            tail_s += math.sqrt(tied) * one.exchange_s_per_root
        return tail_s, sent_s

    @cached_property
    def first_tail_s(self) -> float:
        """What follows the last backward of a first stage of one layer, beside any work."""
        return self.following_s(0, 1, _MOST_S)

    def at_once_s(self) -> float:
        """Bound by the average stage."""
        forward_s = self._with_queue(self.forward_s, 0)[-1]
        backward_s = self._with_queue(self.backward_s, 1)[-1]
        return max(f * forward_s + b * backward_s + c for f, b, c in self.average_stage)

    @cached_property
    def average_stage(self) -> tuple[Line, ...]:
        """Bounds by the average stage; see `least_times._at_once_s`.

        Of sums with what runs beside the passes, whatever they are.
        """
        one, own = self.candidate, self.candidates.own[-1]
        stages, microbatches, messages = one.stages, one.microbatches, one.stages * one.chunks - 1
        saving_s, sent_s = own * self.accumulation_s, one.mean_synchronisation_s
        step_s = own * self.step_s / stages
        # The average stage runs all microbatches; what it sends then takes the cores in part, or
        # follows the last backward, of which that much is left.
        waves, left = microbatches / stages, (microbatches - 1.0 + self.share) / stages
        lines = [Line(waves, waves, self.share * sent_s + step_s - saving_s / stages)]
        if one.chunks > 1:
            lines.append(Line(1.0, 1.0, -saving_s))
            if microbatches >= stages:
                before = (microbatches - stages) / stages
                lines.append(Line(waves, before, sent_s + step_s - saving_s / stages))
            lines.append(Line(waves, 0.0, sent_s + step_s))
        else:
            lines.append(Line(waves, left, sent_s + step_s - saving_s / stages))
            # One microbatch goes through all stages and back, then the rest of the others.
            again = 1.0 + (microbatches - one.in_flight) / stages
            rounds = 1.0 + (microbatches - 1.0) / stages
            lines.append(Line(again, rounds, self.first_tail_s - saving_s))
        forward_s = messages * one.activation_s
        backward_s = messages * one.gradient_s + own * self.accumulation_s
        return tuple(
            Line(f, b, others_s + f * forward_s + b * backward_s) for f, b, others_s in lines
        )

    def pipelined_s(self) -> float:
        """Bound by what pipelines wait for; see `least_times._pipelined_s`."""
        one, known, first = self.candidate, self.candidates, self.candidates.first
        stages, microbatches, in_flight = one.stages, one.microbatches, one.in_flight
        saving_s = known.own[-1] * self.accumulation_s
        received_s = (stages - 1) * (one.activation_s + one.gradient_s)
        once_s = self.forward[-1] + self.backward[-1] + received_s
        least_s = (once_s - saving_s / microbatches) / one.reach + self.first_tail_s
        once_s -= saving_s
        rounds, repeated, own = microbatches - 1.0, one.most_repeated, known.fewest_own
        forward_s = self.forward[first + 1] - self.forward[first]
        backward_s = self.backward[first + 1] - self.backward[first]
        backward_s -= (known.own[first + 1] - known.own[first] - own) * self.accumulation_s
        again_s = rounds * backward_s + (microbatches - in_flight) * forward_s
        least_s = max(least_s, once_s + repeated * again_s + self.first_tail_s)
        row = one.synchronised
        sent_s = self.sent_s(row, repeated * own)
        sent_s = max(self.share * sent_s, sent_s - (1.0 - self.share) * repeated * backward_s)
        load_s = microbatches * (forward_s + backward_s) - own * self.accumulation_s
        least_s = max(least_s, repeated * (load_s + own * self.step_s) + max(sent_s, 0.0))
        if again_s <= 0.0:
            return least_s
        weight = (stages - in_flight) / again_s
        if in_flight > 1 and forward_s > 1e-9 * again_s:
            weight += math.log(rounds * (backward_s + forward_s) / again_s) / forward_s
        else:
            weight += (in_flight - 1) / again_s
        each_s = own * self.step_s
        if row >= 0:
            begin = 0.0 if first == 0 else known.held[0][0][1]
            more_s = self.sent_s(row, begin + known.count * own) - self.sent_s(row, begin)
            each_s += self.share * more_s / known.count
        tail_s = 0.0 if first == 0 else self.first_tail_s
        others = weight + max(0.0, 1.0 - each_s * weight) / (again_s + each_s)
        return max(least_s, once_s + tail_s + known.count / others)

    def least_over_splits_s(self, least_s: float, enough_s: float) -> float:
        """Return a time that no split into stages falls below; ``enough_s`` at most.

        Parameters
        ----------
        least_s
            Such a time that is known.
        """
        high_s = enough_s
        if math.isinf(enough_s):
            high_s = 2.0 * max(least_s, _SMALLEST_S)
            while high_s < _MOST_S and not self._has_split(high_s):
                least_s, high_s = high_s, 2.0 * high_s
        elif not self._has_split(enough_s):
            return enough_s
        while high_s - least_s > _PRECISION * high_s:
            middle_s = 0.5 * (least_s + high_s)
            if self._has_split(middle_s):
                high_s = middle_s
            else:
                least_s = middle_s
        return least_s

    def _has_split(self, time_s: float) -> bool:
        """Whether some split may take at most some time.

        Every stage, from the first one, takes as many layers as it can: what bounds a stage grows
        with its end, and falls with its beginning.
        """
        layers, stages = len(self.forward) - 1, self.candidate.stages
        begin, length = 0, -(-layers // stages)
        for stage in range(1, stages):
            most = layers - (stages - stage)
            end = min(begin + length, most)
            while end > begin and self._stage_s(stage, begin, end) > time_s:
                end -= 1
            if end == begin:
                return False
            while end < most and self._stage_s(stage, begin, end + 1) <= time_s:
                end += 1
            begin, length = end, end - begin
        return self._stage_s(stages, begin, layers) <= time_s

    def _stage_s(self, stage: int, begin: int, end: int) -> float:
        """Bound the time of a batch by a stage: the paths (1) to (6) of `least_splits`."""
        one, known = self.candidate, self.candidates
        stages, microbatches = one.stages, one.microbatches
        after, in_flight = stages - stage, min(stages - stage + 1, microbatches)
        if one.gpipe:
            in_flight = microbatches
        if known.limit[one.limit][begin][end] < in_flight:
            return math.inf
        forwards, backwards, own = self.forward, self.backward, known.own
        forward_s = forwards[end] - forwards[begin] + (one.activation_s if stage > 1 else 0.0)
        backward_s = backwards[end] - backwards[begin] + (one.gradient_s if after > 0 else 0.0)
        # All that the stage does, after the first microbatch has come to it.
        busy_s = microbatches * (forward_s + backward_s)
        busy_s -= (own[end] - own[begin]) * self.accumulation_s
        done_s = forwards[begin] + max(stage - 2, 0) * one.activation_s + busy_s
        # The first microbatch through all stages and back, then what is left of the others.
        once_s = forwards[-1] + (stages - 1) * one.activation_s
        once_s += backwards[-1] - backwards[begin] + after * one.gradient_s
        once_s -= (own[-1] - own[begin]) * self.accumulation_s
        again = microbatches - 1 if one.gpipe else microbatches - in_flight
        left_s = once_s + (microbatches - 1) * backward_s + again * forward_s
        done_s = max(done_s, left_s)
        if again > 0 and not one.gpipe:
            # The last microbatch from here to the last stage and back.
            beyond_s = forwards[-1] - forwards[end] + after * one.activation_s
            beyond_s += backwards[-1] - backwards[end] + max(after - 1, 0) * one.gradient_s
            done_s = max(done_s, once_s + again * (forward_s + backward_s) + beyond_s)
        tail_s = self.following_s(begin, end, backward_s)
        least_s = done_s + tail_s
        if stage > 1:
            back_s = backwards[begin] + (stage - 1) * one.gradient_s
            least_s = max(least_s, done_s + back_s + self.first_tail_s)
        if one.overlaps == 1 and one.gathered >= 0:
            gathered_s = self.sent_s(one.gathered, known.held[0][begin][end])
            waited_s = max(self.share * gathered_s, gathered_s - (1.0 - self.share) * forward_s)
            least_s = max(least_s, waited_s + busy_s + tail_s)
        return least_s
