"""Every contiguous split of random settings, tried by the event replay, beside what `solve` says.

    python -m tests.placement.all_splits --settings 684

For every setting all degrees, rank orders, splits into at most five stages and ways to gather
weights are replayed, as far as they fit the memory. Exit code 1 where one is faster than an answer
that says it is optimal.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import Overlap, PipelineScheduleName, Recompute
from phaze_opt.compiled import lazily_compiled
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, PassCost
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, given_candidates
from phaze_opt.placement.infeasible import MisfitError
from phaze_opt.placement.interleaved import evaluate_interleaved
from phaze_opt.placement.pipeline import finished_s
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import Point, cost_point
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload

MOST_STAGES = 5
PROVEN = 1e-9
"""Relative difference up to which two times are one."""

_CHIPS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("a100-80", ("dgx-a100", "flat-4GiB"), {}),
    ("h100", ("dgx-h100", "flat-4GiB"), {}),
    ("tpuv4-lanes", ("tpuv4-torus", "tpuv4-ici-flat"), {}),
    ("tpuv4-phaze", ("flat-4GiB", "tpuv4-torus"), {"num_tc": 32, "pe_x": 64, "pe_y": 64}),
]
_MODELS = (
    "gpt:layers=3,hidden=256,heads=4,sequence=256,vocab=50000",
    "gpt:layers=6,hidden=512,heads=8,sequence=256,vocab=100000",
    "gpt:layers=9,hidden=1024,heads=16,sequence=512,vocab=32000",
    "llama:layers=12,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=256,vocab=128000",
    "gpt:layers=18,hidden=512,heads=8,sequence=256,vocab=50000",
    "llama:layers=5,hidden=1024,heads=16,kv_heads=8,ffn=2816,sequence=512,vocab=32000",
)
_SCHEDULES: tuple[PipelineScheduleName, ...] = ("1f1b", "1f1b", "gpipe", "interleaved")


Layers = Callable[[random.Random, Training, Accelerator, Cluster], PlacementProblem]
"""Draws the layers of a model for a way of training, a chip and a network."""


def settings(seed: int, count: int, layers: Layers) -> Iterator[PlacementProblem]:
    """Yield random settings that fit, small enough to try every split."""
    rng = random.Random(seed)
    left = count
    while left > 0:
        problem = _drawn(rng, layers)
        # From what fits hardly anywhere to what fits nearly everywhere.
        share = rng.choice([1.0, 1.02, 1.1, 1.2, 1.4, 2.0, 4.0, 100.0])
        try:
            solve_placement(replace(problem, hbm_usable_bytes=1.0))
        except MisfitError as error:
            fitting = replace(problem, hbm_usable_bytes=share * error.misfit.memory.total)
            if _fits(fitting):
                left -= 1
                yield fitting
        except InfeasibleError:
            continue  # nothing to interleave


def _fits(problem: PlacementProblem) -> bool:
    try:
        solve_placement(problem)
    except InfeasibleError:
        return False
    return True


def _drawn(rng: random.Random, layers: Layers) -> PlacementProblem:
    """Draw a setting without its memory."""
    chip, clusters, fields = rng.choice(_CHIPS)
    devices = rng.choice([2, 3, 4, 6, 8, 12, 16, 24, 32])
    microbatch = rng.choice([1, 2])
    schedule = rng.choice(_SCHEDULES)
    recompute: Recompute = rng.choice(("none", "selective", "full"))
    overlap: Overlap = rng.choice(get_args(Overlap))
    training = Training(
        microbatch * rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 32, 64]),
        microbatch,
        recompute,
        rng.choice(["sgd", "adam"]),
        sequence_parallel=rng.random() < 0.25,
        zero=rng.choice([0, 0, 1, 2, 3]),
        overlap=overlap,
        pipeline_schedule=schedule,
        interleave=2 if schedule == "interleaved" else 1,
    )
    accelerator = load_accelerator(chip, **fields)
    problem = layers(rng, training, accelerator, load_cluster(rng.choice(clusters), devices))
    return problem if rng.random() < 0.4 else _uneven(problem, rng)


def captured_layers(
    rng: random.Random, training: Training, accelerator: Accelerator, cluster: Cluster
) -> PlacementProblem:
    """Draw a model, and cost its layers."""
    workload = load_workload(
        rng.choice(_MODELS),
        tensor_parallel=(1, 2, 4),
        microbatch=(1, 2),
        sequence_parallel=training.sequence_parallel,
    )
    return cost_point(Point(workload, accelerator, cluster, training)).problem


def plain_layers(
    rng: random.Random, training: Training, accelerator: Accelerator, cluster: Cluster
) -> PlacementProblem:
    """Draw equal blocks between an embedding and a head, with rough seconds and bytes."""
    hidden, tokens, vocabulary = rng.choice([512, 1024, 4096]), 512, rng.choice([32_000, 128_000])
    rate = 0.4 * accelerator.peak_flops_per_s
    again = {"none": 0.0, "selective": 0.1, "full": 1.0}[training.recompute]
    blocks = rng.randint(2, 11)

    def layer(name: str, parameters: int, flops: float, tensor_degree: int) -> LayerCost:
        forward_s = 5e-6 + training.microbatch * flops / rate / tensor_degree
        link_s = 0.2 * forward_s if tensor_degree > 1 else 0.0
        activation_bytes = 2 * training.microbatch * tokens * hidden
        kept = 1 if training.recompute == "full" else 12
        return LayerCost(
            name=name,
            passes=LayerPasses(
                PassCost(forward_s + link_s, link_s),
                PassCost(2.0 * forward_s + link_s, link_s),
                PassCost(again * forward_s),
            ),
            parameters=parameters // tensor_degree,
            tied_parameters=0,
            stash_bytes=kept * activation_bytes // tensor_degree,
            transient_bytes=4 * activation_bytes,
            output_bytes=activation_bytes,
        )

    def chain(tensor_degree: int) -> tuple[LayerCost, ...]:
        block, table = 12 * hidden**2, hidden * vocabulary
        each = [
            layer(f"block.{i}", block, 2.0 * tokens * block, tensor_degree) for i in range(blocks)
        ]
        head = layer("head", table, 2.0 * tokens * table, tensor_degree)
        return layer("embedding", table, 0.0, tensor_degree), *each, head

    return PlacementProblem(
        layers={tensor_degree: chain(tensor_degree) for tensor_degree in (1, 2, 4)},
        edges=tuple((i, i + 1) for i in range(blocks + 1)),
        cluster=cluster,
        training=training,
        hbm_usable_bytes=accelerator.usable_memory_bytes,
        hbm_bytes_per_s=accelerator.sustained_hbm_bytes_per_s,
        collective_core_share=accelerator.calibration.collective_core_share,
    )


def _uneven(problem: PlacementProblem, rng: random.Random) -> PlacementProblem:
    """Give every layer other seconds, and the head more of them."""
    count = len(problem.layers[1])
    spread = rng.choice([0.0, 0.1, 1.0])
    shares = [1.0 + spread * rng.uniform(-0.7, 2.0) for _ in range(count)]
    shares[-1] *= rng.choice([1.0, 2.0, 3.0, 5.0])
    layers = {
        tensor_degree: tuple(map(_longer, problem.layers[tensor_degree], shares))
        for tensor_degree in problem.layers
    }
    names = problem.names_of(1)
    return replace(problem, layers=layers, least=None, kinds=None, names=names)


def _longer(layer: LayerCost, share: float) -> LayerCost:
    """Return a layer that takes so many times as long."""
    names = [name for name in vars(layer) if name.endswith("_s")]
    return layer.with_fields(**{name: share * getattr(layer, name) for name in names})


@lazily_compiled(
    "Tuple((float64, int64[::1], int64))(float64[:,:,::1], int64[:,::1], int64[::1], int64[::1],"
    " int64, int64)"
)
def _least_replay(
    tables: FloatArray,
    in_flight_limit: IntArray,
    held: IntArray,
    limit: IntArray,
    stages: int,
    microbatches: int,
) -> tuple[float, IntArray, int]:
    """Replay every split into so many stages that fits.

    Parameters
    ----------
    tables : (5, layers, layers + 1)
        Forward, backward, what the first backward saves, head and tail of every stage.
    in_flight_limit : (layers, layers + 1)
        Of every stage.
    held, limit : (stages,)
        Microbatches in flight, first stage first, and up to how many forwards it is ahead.
    stages, microbatches
        Of the pipeline.
    """
    layers = in_flight_limit.shape[0]
    least_s, best, count = np.inf, np.zeros(stages, np.int64), 0
    starts = np.arange(stages + 1)
    starts[stages] = layers
    work = np.zeros((5, stages))
    while True:
        fits = True
        for stage in range(stages):
            i, j = starts[stage], starts[stage + 1]
            fits = fits and in_flight_limit[i, j] >= held[stage]
            for row in range(5):
                work[row, stage] = tables[row, i, j]
        if fits:
            count += 1
            ends_s = finished_s(work[0], work[1], work[2], work[3], limit, microbatches)
            time_s = 0.0
            for stage in range(stages):
                time_s = max(time_s, ends_s[stage] + work[4, stage])
            if time_s < least_s:
                least_s = time_s
                best[:] = starts[:stages]
        # The next split in lexicographic order.
        last = stages - 1
        while last > 0 and starts[last] == layers - stages + last:
            last -= 1
        if last <= 0:
            return least_s, best, count
        starts[last] += 1
        for stage in range(last + 1, stages):
            starts[stage] = starts[stage - 1] + 1


@dataclass(frozen=True)
class Tried:
    """The best of all splits: its time, what it is, and how many were replayed."""

    time_s: float
    what: str
    count: int


def all_candidates(problem: PlacementProblem) -> Iterator[Candidate]:
    """Yield all degrees in all rank orders, up to the most stages that are tried."""
    training, devices = problem.training, problem.cluster.devices
    for tensor in problem.layers:
        first, step = training.fewest_replicas(tensor), training.expert_step(tensor)
        for data in range(first, devices // tensor + 1, step):
            if data * training.microbatch > training.global_batch:
                break
            most = min(MOST_STAGES, len(problem.layers[tensor]), devices // (data * tensor))
            for pipeline in range(1, most + 1):
                degrees = Degrees(pipeline, data, tensor)
                yield from given_candidates(degrees, problem.cluster, training)


def try_all(problem: PlacementProblem) -> Tried:
    """Replay all splits of all candidates; interleaved ones are even."""
    costs = CandidateCosts(problem)
    best = Tried(math.inf, "", 0)
    count = 0
    for candidate in all_candidates(problem):
        if problem.training.interleave > 1:
            split = _try_interleaved(costs, candidate)
        else:
            split = try_candidate(costs, candidate)
        count += split.count
        if split.time_s < best.time_s:
            best = split
    return replace(best, count=count)


def _try_interleaved(costs: CandidateCosts, candidate: Candidate) -> Tried:
    try:
        placement = evaluate_interleaved(costs, candidate)
    except InfeasibleError:
        return Tried(math.inf, "", 0)
    return Tried(placement.time_per_batch_s, str(candidate), 1)


def try_candidate(costs: CandidateCosts, candidate: Candidate) -> Tried:
    """Replay all splits of a candidate, with both ways to gather weights where it has them."""
    work, microbatches = costs.work(candidate), costs.microbatches(candidate.data)
    saving_s = work.stages.held.added * work.stages.accumulation_s_per_parameter
    group = costs.group(candidate)
    best, count = Tried(math.inf, "", 0), 0
    for ahead in (True, False) if group.zero in (1, 2) and group.overlaps else (True,):
        head_s = work.head_s if ahead else np.zeros_like(work.head_s)
        tail_s = costs.optimizer_s(candidate) + costs.synchronisation_s(candidate)
        tail_s = tail_s + costs.final_gather_s(candidate, ahead)
        tables = np.array([work.forward_s, work.backward_s, saving_s, head_s, tail_s])
        held = np.ascontiguousarray(costs.held(candidate)[:0:-1])
        time_s, starts, tried = _least_replay(
            tables,
            work.stages.held.in_flight_limit,
            held,
            held,
            candidate.pipeline,
            microbatches,
        )
        count += tried
        if time_s < best.time_s:
            best = Tried(time_s, f"{candidate} {starts.tolist()} ahead={ahead}", 0)
    return replace(best, count=count)


def main(arguments: Sequence[str]) -> int:
    """Try random settings, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.placement.all_splits")
    parser.add_argument("--settings", type=int, default=684, help="how many (default: 684)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    given = parser.parse_args(arguments)
    statuses: Counter[str | None] = Counter()
    wrong = beaten = replays = 0
    worst_gap = solve_s = 0.0
    drawn = settings(given.seed, given.settings, captured_layers)
    for index, problem in enumerate(drawn):
        began = time.process_time()
        answer = solve_placement(problem)
        solve_s += time.process_time() - began
        best = try_all(problem)
        replays += best.count
        statuses[answer.status] += 1
        worst_gap = max(worst_gap, answer.gap or 0.0)
        if best.time_s < answer.time_per_batch_s * (1.0 - PROVEN):
            beaten += 1
            wrong += answer.status == "optimal"
            print(f"setting {index}: {_shown(problem, answer, best)}", file=sys.stderr)
    print(f"{given.settings} settings, {replays} replays, {dict(statuses)}")
    print(f"a better split found in {beaten}, {wrong} of them said to be optimal")
    print(f"worst gap {worst_gap:.2%}, {solve_s:.1f} s of CPU time to solve")
    return 1 if wrong else 0


def _shown(problem: PlacementProblem, answer: Placement, best: Tried) -> str:
    """Say by how much an answer is beaten."""
    gain = answer.time_per_batch_s / best.time_s - 1.0
    sizes = [len(stage.layers) for stage in answer.stages]
    return f"{gain:.2%} {answer.degrees_text} {sizes} -> {best.what} {problem.training!r}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
