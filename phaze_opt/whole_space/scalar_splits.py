"""The bound of the time of a batch with one candidate, in plain Python; see `scalar_bounds`.

Three bounds: by the average stage, by the waiting times of a pipeline, and over all splits of the
layers into stages. They are written apart from `phaze_opt.placement.least_times` and
`phaze_opt.placement.least_splits` on purpose.
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
"""Relative precision of the least time of a split."""
_SMALLEST_S = 1e-12
"""Shorter than every time, in seconds."""
_MOST_S = 1e300
"""Longer than the time of every split that fits the memory, in seconds."""


@dataclass(frozen=True)
class PassSums:
    """Seconds of passes: sums over the layers before each layer, and over all layers at the end.

    Attributes
    ----------
    mean_s
        On average over the microbatches.
    more_s
        By how much the first forward, or the last backward, of a batch takes longer: it is in no
        pair.
    """

    mean_s: Sequence[float]
    more_s: Sequence[float]


@dataclass(frozen=True)
class SplitBatch:
    """A batch with one candidate on one chip.

    Attributes
    ----------
    forwards, backwards
        The passes.
    way
        For forward and backward: 1 if the queue slows down the pass, 0 if the pass slows down the
        queue.
    """

    forwards: PassSums
    backwards: PassSums
    candidates: ScalarCandidates
    candidate: ScalarCandidate
    chip: ChipSeconds
    way: tuple[int, int] = (0, 0)

    @cached_property
    def share(self) -> float:
        """Share of the compute that communication beside it takes."""
        return self.chip.core_share if self.candidate.overlaps == 1 else 1.0

    @cached_property
    def step_s(self) -> float:
        """Seconds of the optimizer step per parameter, and of the casts after it."""
        return self.chip.step_s / self.candidate.optimizer_shards + self.chip.cast_s

    @cached_property
    def accumulation_s(self) -> float:
        """Seconds of accumulation per parameter and microbatch; 0 for a single microbatch."""
        several = self.candidate.microbatches > 1
        return self.chip.accumulation_s / self.candidate.gradient_shards if several else 0.0

    @cached_property
    def forward(self) -> Sequence[float]:
        """Sums of the forwards, with the queues beside them."""
        return self._with_queue(self.forwards.mean_s, 0)

    @cached_property
    def backward(self) -> Sequence[float]:
        """Sums of the backwards, with the queues beside them and the accumulation."""
        sums = self._with_queue(self.backwards.mean_s, 1)
        if self.accumulation_s == 0.0:
            return sums
        pairs = zip(sums, self.candidates.added, strict=True)
        return [seconds + added * self.accumulation_s for seconds, added in pairs]

    def _with_queue(self, sums: Sequence[float], row: int) -> Sequence[float]:
        group = self.candidate.every_pass
        if group < 0:
            return sums
        compute, queue = (self.share, 1.0) if self.way[row] else (1.0, self.share)
        pairs = zip(sums, self.candidates.every_pass[group][row], strict=True)
        return [compute * seconds + queue * sent_s for seconds, sent_s in pairs]

    def synchronised_s(self, parameters: float, routed: float) -> float:
        """Return the seconds in which replicas exchange gradients, of experts among them."""
        candidate = self.candidate
        all_s = self._sent_s(candidate.synchronised, parameters - routed)
        return all_s + self._sent_s(candidate.synchronised_routed, routed)

    def gathered_s(self, parameters: float, routed: float) -> float:
        """Return the seconds in which replicas gather weights, of experts among them."""
        candidate = self.candidate
        all_s = self._sent_s(candidate.gathered, parameters - routed)
        return all_s + self._sent_s(candidate.gathered_routed, routed)

    def _sent_s(self, row: int, parameters: float) -> float:
        """Return the seconds of the cheapest collective over a number of parameters."""
        if row < 0 or parameters <= 0.0:
            return 0.0
        root = math.sqrt(parameters)
        return min(
            latency_s + parameters * per_parameter + root * per_root
            for latency_s, per_parameter, per_root in self.candidates.lines[row]
        )

    def following_s(self, begin: int, end: int, backward_s: float) -> float:
        """Return the seconds after the last backward of a stage from ``begin`` to ``end``."""
        if (begin, end) not in self._known_tails:
            self._known_tails[begin, end] = self._tail(begin, end)
        fixed_s, sent_s = self._known_tails[begin, end]
        last_s = 0.0 if backward_s == _MOST_S else self._least_last_s[end]
        return fixed_s + self._exposed_s(sent_s, 1, backward_s, begin, end, last_s)

    @cached_property
    def _least_last_s(self) -> Sequence[float]:
        """Least backward without the network of a layer, from the one before each end on."""
        link_s, ends = self.candidates.links[1], range(1, len(self.backward))
        if self.candidate.alone < 1.0:
            return [0.0 for _ in self.backward]
        each_s = [
            self.backward[end] - self.backward[end - 1] - (link_s[end] - link_s[end - 1])
            for end in ends
        ]
        return [0.0, *(max(min(each_s[end - 1 :]), 0.0) for end in ends)]

    def _exposed_s(
        self, sent_s: float, row: int, pass_s: float, begin: int, end: int, last_s: float = 0.0
    ) -> float:
        """Return what an exchange adds that runs beside a pass of layers: 0 forward, 1 backward.

        It does not run while groups beside the replicas use the same level of the network, nor,
        in a backward, before that of the last layer has ended.
        """
        more_s = (self.forwards, self.backwards)[row].more_s
        pass_s += more_s[end] - more_s[begin]
        if self.candidate.shares_level:
            link_s = self.candidates.links[row]
            pass_s = max(pass_s - (link_s[end] - link_s[begin]), 0.0)
        return max(self.share * sent_s, sent_s - (1.0 - self.share) * max(pass_s - last_s, 0.0))

    @cached_property
    def _known_tails(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Tails of this candidate by first and last layer, shared by all passes."""
        return self.candidates.tails.setdefault((self.candidate, self.chip), {})

    def _tail(self, begin: int, end: int) -> tuple[float, float]:
        """Return the seconds after the last backward, and those that may overlap with it."""
        candidate = self.candidate
        parameters, tied, routed = self.candidates.held_by(begin, end)
        sent_s = self.synchronised_s(parameters, routed)
        tail_s = parameters * self.step_s
        if candidate.overlaps == 0:
            tail_s += self.gathered_s(parameters, routed)
        if candidate.stages > 1 and tied > 0.0:
            tail_s += candidate.exchange_latency_s + tied * candidate.exchange_s_per_parameter
            tail_s += math.sqrt(tied) * candidate.exchange_s_per_root
        return tail_s, sent_s

    @cached_property
    def first_tail_s(self) -> float:
        """Least seconds after the last backward of a first stage of one layer."""
        return self.following_s(0, 1, _MOST_S)

    def at_once_s(self) -> float:
        """Bound by the average stage."""
        forward_s = self._with_queue(self.forwards.mean_s, 0)[-1]
        backward_s = self._with_queue(self.backwards.mean_s, 1)[-1]
        more_s = self.backwards.more_s[-1]
        lines = self.average_stage
        return max(f * forward_s + b * backward_s + m * more_s + c for f, b, m, c in lines)

    @cached_property
    def average_stage(self) -> tuple[Line, ...]:
        """Bounds by the average stage, for all passes; see `least_times._at_once_s`.

        Their factors apply to the sums of passes with the queues beside them.
        """
        candidate, own = self.candidate, self.candidates.own[-1]
        stages, microbatches = candidate.stages, candidate.microbatches
        messages = stages * candidate.chunks - 1
        saving_s = self.candidates.added[-1] * self.accumulation_s
        sent_s = candidate.mean_synchronisation_s
        step_s = own * self.step_s / stages
        # The average stage runs all microbatches; its synchronisation then takes a share of the
        # cores, or follows the last backward, of which that much is left.
        waves, left = microbatches / stages, (microbatches - 1.0 + self.share) / stages
        lines = [(waves, waves, 0.0, self.share * sent_s + step_s - saving_s / stages)]
        if candidate.chunks > 1:
            lines.append((1.0, 1.0, 0.0, -saving_s))
            if microbatches >= stages:
                before = (microbatches - stages) / stages
                lines.append((waves, before, 0.0, sent_s + step_s - saving_s / stages))
            lines.append((waves, 0.0, 0.0, sent_s + step_s))
        elif candidate.splits_backward == 1:
            lines.append((waves, left, 0.0, sent_s + step_s - saving_s / stages))
        elif candidate.splits_backward == 0:
            # What uses the network in it is no part of that.
            link_s = self.candidates.links[1][-1] if candidate.shares_level else 0.0
            hidden_s = (1.0 - self.share) * link_s / stages
            others_s = sent_s + hidden_s + step_s - saving_s / stages
            lines.append((waves, left, (self.share - 1.0) / stages, others_s))
            # One microbatch goes through all stages and back, then the rest of the others.
            again = 1.0 + (microbatches - candidate.in_flight) / stages
            rounds = 1.0 + (microbatches - 1.0) / stages
            lines.append((again, rounds, 0.0, self.first_tail_s - saving_s))
        forward_s = messages * candidate.activation_s
        backward_s = messages * candidate.gradient_s + saving_s
        return tuple((f, b, m, c + f * forward_s + b * backward_s) for f, b, m, c in lines)

    def pipelined_s(self) -> float:
        """Bound by the waiting times of a pipeline, in seconds; see `least_times._pipelined_s`."""
        candidate, known, first = self.candidate, self.candidates, self.candidates.first
        stages, microbatches = candidate.stages, candidate.microbatches
        in_flight = candidate.in_flight
        saving_s = known.added[-1] * self.accumulation_s
        received_s = (stages - 1) * (candidate.activation_s + candidate.gradient_s)
        once_s = self.forward[-1] + self.backward[-1] + received_s
        least_s = (once_s - saving_s / microbatches) / candidate.reach + self.first_tail_s
        once_s -= saving_s
        rounds, repeated, own = microbatches - 1.0, candidate.most_repeated, known.fewest_own
        forward_s = self.forward[first + 1] - self.forward[first]
        backward_s = self.backward[first + 1] - self.backward[first]
        added = known.fewest_added
        backward_s -= (known.added[first + 1] - known.added[first] - added) * self.accumulation_s
        again_s = rounds * backward_s + (microbatches - in_flight) * forward_s
        least_s = max(least_s, once_s + repeated * again_s + self.first_tail_s)
        sent_s = self.synchronised_s(repeated * own, repeated * known.routed)
        link_s = 0.0
        if candidate.shares_level:
            link_s = known.links[1][first + 1] - known.links[1][first]
        more_s = self.backwards.more_s[first + 1] - self.backwards.more_s[first]
        cover_s = repeated * max(backward_s + more_s - link_s, 0.0)
        sent_s = max(self.share * sent_s, sent_s - (1.0 - self.share) * cover_s)
        load_s = microbatches * (forward_s + backward_s) - added * self.accumulation_s
        least_s = max(least_s, repeated * (load_s + own * self.step_s) + max(sent_s, 0.0))
        if again_s <= 0.0:
            return least_s
        weight = (stages - in_flight) / again_s
        if in_flight > 1 and forward_s > 1e-9 * again_s:
            weight += math.log(rounds * (backward_s + forward_s) / again_s) / forward_s
        else:
            weight += (in_flight - 1) / again_s
        layer_s = own * self.step_s
        if candidate.synchronised >= 0:
            parameters, _, routed = (0.0,) * 3 if first == 0 else known.held_by(0, 1)
            all_own, all_routed = known.count * own, known.count * known.routed
            more_s = self.synchronised_s(parameters + all_own, routed + all_routed)
            more_s -= self.synchronised_s(parameters, routed)
            layer_s += self.share * more_s / known.count
        tail_s = 0.0 if first == 0 else self.first_tail_s
        others = weight + max(0.0, 1.0 - layer_s * weight) / (again_s + layer_s)
        return max(least_s, once_s + tail_s + known.count / others)

    def least_over_splits_s(self, least_s: float, enough_s: float) -> float:
        """Bound the time of every split into stages, in seconds; ``enough_s`` at most.

        Parameters
        ----------
        least_s
            A known bound.
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
        """Whether a split may take no longer than a time.

        Every stage, from the first to the last, takes as many layers as it can: the bound of a
        stage grows with its end, and falls with its beginning.
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
        """Bound the time of a batch by one stage: the paths (1) to (6) of `least_splits`."""
        candidate, known = self.candidate, self.candidates
        stages, microbatches = candidate.stages, candidate.microbatches
        activation_s, gradient_s = candidate.activation_s, candidate.gradient_s
        after, in_flight = stages - stage, min(stages - stage + 1, microbatches)
        if candidate.gpipe:
            in_flight = microbatches
        if known.limit.item(candidate.limit, begin, end) < in_flight:
            return math.inf
        forwards, backwards, added = self.forward, self.backward, known.added
        forward_s = forwards[end] - forwards[begin] + (activation_s if stage > 1 else 0.0)
        backward_s = backwards[end] - backwards[begin] + (gradient_s if after > 0 else 0.0)
        # All work of the stage, after the first microbatch has come to it.
        busy_s = microbatches * (forward_s + backward_s)
        busy_s -= (added[end] - added[begin]) * self.accumulation_s
        done_s = forwards[begin] + max(stage - 2, 0) * activation_s + busy_s
        # The first microbatch through all stages and back, then the remaining work of the others.
        once_s = forwards[-1] + (stages - 1) * activation_s
        once_s += backwards[-1] - backwards[begin] + after * gradient_s
        once_s -= (added[-1] - added[begin]) * self.accumulation_s
        again = microbatches - 1 if candidate.gpipe else microbatches - in_flight
        left_s = once_s + (microbatches - 1) * backward_s + again * forward_s
        done_s = max(done_s, left_s)
        if again > 0 and not candidate.gpipe:
            # The last microbatch from this stage to the last stage and back.
            beyond_s = forwards[-1] - forwards[end] + after * activation_s
            beyond_s += backwards[-1] - backwards[end] + max(after - 1, 0) * gradient_s
            done_s = max(done_s, once_s + again * (forward_s + backward_s) + beyond_s)
        tail_s = self.following_s(begin, end, backward_s)
        least_s = done_s + tail_s
        if stage > 1:
            back_s = backwards[begin] + (stage - 1) * gradient_s
            least_s = max(least_s, done_s + back_s + self.first_tail_s)
        if candidate.overlaps == 1 and candidate.gathered >= 0:
            parameters, _, routed = known.held_by(begin, end)
            gathered_s = self.gathered_s(parameters, routed)
            waited_s = self._exposed_s(gathered_s, 0, forward_s, begin, end)
            least_s = max(least_s, waited_s + busy_s + tail_s)
        return least_s
