"""A batch simulated event by event, from the definitions: the oracle of the placement's times.

Shares no code with the placement but the cost of one collective or message.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from phaze_opt.choices import CollectiveName
from phaze_opt.degrees import Degrees
from phaze_opt.network.collective import collective_s
from phaze_opt.network.message import send_receive_s
from phaze_opt.passes.layer_cost import LayerCost, local_parameters
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.placement.placement_problem import PlacementProblem


@dataclass
class Queue:
    """A link that serves transfers in order of their release, and stands still while blocked."""

    waiting: list[list[float]] = field(default_factory=list)
    """Seconds still to serve and a number, of each transfer."""
    done: dict[float, float] = field(default_factory=dict)
    """End of each transfer by its number."""
    now_s: float = 0.0

    def release(self, number: float, seconds: float) -> None:
        """Put a transfer at the end of the queue."""
        self.waiting.append([seconds, number])
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass in which the link may serve."""
        end_s = self.now_s + seconds
        while self.waiting:
            left_s, number = self.waiting[0]
            if left_s > end_s - self.now_s:
                self.waiting[0][0] = left_s - (end_s - self.now_s)
                break
            self.now_s += left_s
            self.done[number] = self.now_s
            self.waiting.pop(0)
        self.now_s = end_s

    def block(self, seconds: float) -> None:
        """Let time pass in which somebody else has the link."""
        self.now_s += seconds

    def wait_for(self, number: float) -> None:
        """Let time pass until a transfer is done."""
        while number not in self.done:
            seconds, first = self.waiting.pop(0)
            self.now_s += seconds
            self.done[first] = self.now_s

    @property
    def left_s(self) -> float:
        """Seconds of all transfers that wait."""
        return sum(seconds for seconds, _ in self.waiting)


def simulate_pass(
    busy_s: Sequence[float],
    blocked_s: Sequence[float],
    gather_s: Sequence[float],
    reduce_s: Sequence[float],
) -> tuple[float, float]:
    """Run through layers in the given order; return time of the compute, and what is left then.

    Each layer waits for its gather, works (its own collectives first), and releases its gradients.
    """
    queue = Queue()
    for index, seconds in enumerate(gather_s):
        queue.release(index, seconds)
    for index in range(len(busy_s)):
        queue.wait_for(index)
        queue.block(blocked_s[index])
        queue.advance(busy_s[index] - blocked_s[index])
        queue.release(len(busy_s) + index, reduce_s[index])
    return queue.now_s, queue.left_s


@dataclass
class StageTimes:
    """What one stage does: per microbatch, and around the batch."""

    forward_s: float
    backward_s: float
    saving_s: float
    head_s: float
    tail_s: float


class Simulation:
    """One candidate of a problem."""

    def __init__(self, problem: PlacementProblem, degrees: Degrees) -> None:
        self.problem = problem
        self.pipeline, self.data, self.tensor = degrees[:3]
        self.training = problem.training
        training = problem.training
        # Ranks that follow one another hold the experts once.
        self.expert_devices = training.expert_parallel * (
            training.expert_tensor_parallel or self.tensor
        )
        self.optimizer = problem.training.state
        self.layers = problem.layers[self.tensor]
        batch = self.data * self.training.microbatch
        self.microbatches = -(-self.training.global_batch // batch)

    def collective(self, kind: CollectiveName, count: int, routed: int, each: float) -> float:
        """Return the time of a collective of the replicas; nothing takes no time.

        Of so many parameters of some bytes each; of those among them that are a share of the routed
        experts, among the replicas that have the same share.
        """
        same, cluster = self.data * self.tensor // self.expert_devices, self.problem.cluster
        time_s = 0.0
        for size_bytes, members, stride in (
            ((count - routed) * each, self.data, self.tensor),
            (routed * each, same, self.expert_devices),
        ):
            if size_bytes > 0 and members > 1:
                time_s += collective_s(kind, size_bytes, members, cluster, stride)
        return time_s

    def message(self, size_bytes: float) -> float:
        """Return the time of a message between stages, whole or split over the tensor group."""
        stride = self.tensor * self.data
        whole = send_receive_s(size_bytes, self.problem.cluster, stride, self.pipeline)
        if self.tensor == 1 or self.training.sequence_parallel:
            return whole
        part = send_receive_s(size_bytes / self.tensor, self.problem.cluster, stride, self.pipeline)
        gather = collective_s("all_gather", size_bytes, self.tensor, self.problem.cluster)
        return min(whole, part + gather)

    def own_parameters(self, held: Sequence[LayerCost]) -> list[int]:
        """Count tied parameters with the first layer that holds them."""
        counts, seen = [], False
        for layer in held:
            counts.append(layer.parameters - (layer.tied_parameters if seen else 0))
            seen = seen or layer.tied_parameters > 0
        return counts

    def stage(self, i: int, j: int, ahead: bool) -> StageTimes:
        """Time one stage from its layers, weights gathered ahead of the batch or behind it."""
        held, zero = self.layers[i:j], self.training.zero if self.data > 1 else 0
        overlap = self.training.overlap != "none"
        own = self.own_parameters(held)
        kind: CollectiveName = "all_reduce" if zero == 0 else "reduce_scatter"
        routed = [layer.routed_parameters for layer in held]
        optimizer = self.optimizer
        gradients = [
            self.collective(kind, n, r, optimizer.gradient_bytes)
            for n, r in zip(own, routed, strict=True)
        ]
        weights = [
            self.collective("all_gather", n, r, optimizer.gathered_bytes)
            for n, r in zip(own, routed, strict=True)
        ]
        parameters, all_routed = local_parameters(held), sum(routed)
        whole_gradients = self.collective(kind, parameters, all_routed, optimizer.gradient_bytes)
        whole_weights = self.collective(
            "all_gather", parameters, all_routed, optimizer.gathered_bytes
        )
        # All of one flat network is shared with the tensor-parallel group.
        blocked_forward = [layer.passes.forward.link_s for layer in held]
        blocked_backward = [sum(layer_pass.link_s for layer_pass in la.passes[1:]) for la in held]
        forward = [layer.passes.forward.seconds for layer in held]
        backward = [sum(layer_pass.seconds for layer_pass in layer.passes[1:]) for layer in held]
        none = [0.0] * len(held)
        head_s = tail_s = 0.0
        if zero == 3 and overlap:
            forward_s, _ = simulate_pass(forward, blocked_forward, weights, none)
        else:
            forward_s = sum(forward) + (sum(weights) if zero == 3 else 0.0)
        if zero >= 2:
            gathers = weights if zero == 3 else none
            if overlap:
                backward_s = sum(
                    simulate_pass(
                        backward[::-1], blocked_backward[::-1], gathers[::-1], gradients[::-1]
                    )
                )
            else:
                backward_s = sum(backward) + sum(gathers) + sum(gradients)
        else:
            backward_s = sum(backward)
            _, left_s = simulate_pass(backward[::-1], blocked_backward[::-1], none, gradients[::-1])
            tail_s += min(left_s, whole_gradients) if overlap else whole_gradients
        if zero in (1, 2):
            start_s, _ = simulate_pass(forward, blocked_forward, weights, none)
            if overlap and ahead:
                head_s = min(start_s - sum(forward), whole_weights)
            else:
                tail_s += min(whole_weights, sum(weights))
        accumulation = self.problem.accumulation_s_per_parameter if self.microbatches > 1 else 0.0
        shards = Shards.of(zero, self.data)
        # A replica has its share of what they share out, of experts that others have too.
        elsewhere = sum(-(-each * self.expert_devices // self.tensor) - each for each in routed)
        added_up = min(parameters, sum(la.parameters - la.accumulated_parameters for la in held))
        if shards.gradients > 1:
            added_up = parameters + elsewhere
        saving_s = added_up * accumulation / shards.gradients
        backward_s += saving_s
        if i > 0:
            forward_s += self.message(self.layers[i - 1].output_bytes)
        if j < len(self.layers):
            backward_s += self.message(self.layers[j - 1].output_bytes)
        tied = [layer.tied_parameters for layer in held]
        if max(tied) > 0 and sum(tied) < sum(layer.tied_parameters for layer in self.layers):
            stride = self.tensor * self.data
            half = max(tied) * self.optimizer.gradient_bytes / 2.0
            tail_s += 2.0 * send_receive_s(half, self.problem.cluster, stride, self.pipeline)
        stepped = parameters + (elsewhere if shards.optimizer > 1 else 0)
        tail_s += stepped * self.problem.step_s_per_parameter / shards.optimizer
        tail_s += parameters * self.problem.cast_s_per_parameter
        return StageTimes(forward_s, backward_s, saving_s, head_s, tail_s)

    def fits(self, starts: Sequence[int]) -> bool:
        """Whether every stage fits its memory."""
        ends = [*starts[1:], len(self.layers)]
        shards = Shards.of(self.training.zero, self.data)
        gpipe = self.training.pipeline_schedule == "gpipe"
        for stage, (i, j) in enumerate(zip(starts, ends, strict=True)):
            held = self.microbatches if gpipe else min(self.pipeline - stage, self.microbatches)
            memory = stage_memory(self.layers[i:j], held, self.optimizer, shards)
            if memory.total > self.problem.hbm_usable_bytes:
                return False
        return True

    def time_s(self, starts: Sequence[int]) -> float:
        """Return the time of a batch, weights gathered when it takes less."""
        ends = [*starts[1:], len(self.layers)]
        times_s = []
        for ahead in (True, False):
            stages = [self.stage(i, j, ahead) for i, j in zip(starts, ends, strict=True)]
            finish_s = self.finish_s(stages)
            after_s = [end + stage.tail_s for end, stage in zip(finish_s, stages, strict=True)]
            times_s.append(max(after_s))
        return min(times_s)

    def finish_s(self, stages: Sequence[StageTimes]) -> list[float]:
        """Run the work of every stage in its order, each as soon as what it needs is there."""
        count, m = len(stages), self.microbatches
        orders = [self.order(stage, count) for stage in range(count)]
        ends: dict[tuple[str, int, int], float] = {}
        clock = [0.0] * count
        position = [0] * count
        while any(position[s] < len(orders[s]) for s in range(count)):
            moved = False
            for s in range(count):
                while position[s] < len(orders[s]):
                    kind, microbatch = orders[s][position[s]]
                    near = s - 1 if kind == "F" else s + 1
                    if 0 <= near < count and (kind, near, microbatch) not in ends:
                        break
                    ready = ends.get((kind, near, microbatch), 0.0)
                    start = max(clock[s], ready)
                    work = stages[s].forward_s if kind == "F" else stages[s].backward_s
                    if microbatch == 0:
                        start = max(start, stages[s].head_s) if kind == "F" else start
                        work -= stages[s].saving_s if kind == "B" else 0.0
                    clock[s] = start + work
                    ends[kind, s, microbatch] = clock[s]
                    position[s] += 1
                    moved = True
            assert moved
        assert len(ends) == 2 * count * m
        return clock

    def order(self, stage: int, stages: int) -> list[tuple[str, int]]:
        """Return the forwards and backwards of one stage in the order of its schedule."""
        m = self.microbatches
        if self.training.pipeline_schedule == "gpipe":
            return [("F", k) for k in range(m)] + [("B", k) for k in range(m)]
        warm_up = min(stages - stage, m)
        steady = itertools.chain.from_iterable(
            (("B", k), ("F", k + warm_up)) if k + warm_up < m else (("B", k),) for k in range(m)
        )
        return [("F", k) for k in range(warm_up)] + list(steady)


def best_s(problem: PlacementProblem) -> float | None:
    """Return the least time over all degrees and splits; ``None`` if none fits."""
    from tests.placement.strategies import all_degrees, all_splits

    times = []
    for degrees in all_degrees(problem):
        run = Simulation(problem, degrees)
        for starts in all_splits(len(run.layers), degrees[0]):
            if run.fits(starts):
                times.append(run.time_s(starts))
    return min(times, default=None)
