"""Placements that the published cost prefers, timed by the cost model of this program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.degrees import RANK_ORDERS, Degrees
from phaze_opt.errors import InfeasibleError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.partitioning.phaze_format import PhazeEdge, PhazeNode, PhazeProblem
from phaze_opt.partitioning.published import PublishedPlacement, solve_published
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.held_stages import held_stages
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.timing import replayed
from phaze_opt.point import Point, cost_point
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.study.study import Study
from phaze_opt.workload.graph import Workload
from studies.paper.comparison import designs_of

_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


@dataclass(frozen=True)
class PlacedAsPublished:
    """A model on a chip, placed by the published cost at the options where that turns out best.

    Attributes
    ----------
    throughput_samples_per_s
        Of the best of its placements that fits the memory; 0 where none does.
    promised_samples_per_s
        What the published cost says of it.
    degrees
        Pipeline, data and tensor parallelism.
    """

    model: str
    chip: str
    throughput_samples_per_s: float = 0.0
    promised_samples_per_s: float = 0.0
    degrees: tuple[int, int, int] = (0, 0, 0)
    microbatch: int = 0
    recompute: str = ""


def place_as_published(
    study: Study, workload: Workload, name: str, chip: Accelerator, *, own_hbm: bool
) -> PlacedAsPublished:
    """Place a model on a chip by the published cost, under every combination of a study's options.

    Parameters
    ----------
    study, workload, name, chip, own_hbm
        See `studies.paper.comparison.train`.
    """
    resolved = study.resolved
    model = str(resolved.spec.model)
    best = PlacedAsPublished(model, name)
    schedules: ScheduleCache = {}
    for design in designs_of(resolved, chip, own_hbm=own_hbm):
        (inputs,) = run_inputs(resolved, 0, design)
        point = Point(workload, design.accelerator, design.cluster, inputs.training)
        problem = cost_point(point, schedules).problem
        try:
            placement = solve_published(as_published(problem))
        except InfeasibleError:
            continue
        time_s = true_time_s(problem, placement)
        samples = inputs.training.global_batch
        if time_s is None or samples / time_s <= best.throughput_samples_per_s:
            continue
        best = PlacedAsPublished(
            model,
            name,
            samples / time_s,
            samples / placement.time_per_batch_s,
            (placement.pipeline, placement.data, placement.tensor),
            int(str(design.options["microbatch"])),
            str(design.options["recompute"]),
        )
    return best


def true_time_s(problem: PlacementProblem, placement: PublishedPlacement) -> float | None:
    """Return the time of a batch of a published placement, ``None`` where it does not fit."""
    costs = CandidateCosts(problem)
    starts = np.array([stage.layers[0] for stage in placement.stages], dtype=np.int64)
    times_s = []
    for order in RANK_ORDERS:
        candidate = Candidate.of(
            Degrees(placement.pipeline, placement.data, placement.tensor), order
        )
        layout = Layout.of_starts(candidate, starts, costs.layers)
        if (
            max(stage.memory.total for stage in held_stages(costs, layout))
            > problem.hbm_usable_bytes
        ):
            return None
        times_s.append(replayed(costs, layout).time_s)
    return min(times_s)


def as_published(problem: PlacementProblem) -> PhazeProblem:
    """Return a placement problem as the published solver takes it.

    The network is its outermost level. Under recompute the bytes that enter a stage are its stash,
    and the activations of one microbatch are held beside it.
    """
    training = problem.training
    weight_bytes = OPTIMIZERS[training.optimizer].weight_bytes
    recomputes = training.recompute != "none"

    def node(place: int, layer: LayerCost, tensor_degree: int) -> PhazeNode:
        held_bytes = layer.transient_bytes if recomputes else layer.stash_bytes
        return PhazeNode(
            id=place,
            parameter_bytes=float(layer.parameters * weight_bytes),
            activation_bytes=float(held_bytes),
            forward_s=layer.passes.forward.seconds,
            backward_s=layer.passes.backward.seconds,
            tensor_parallel=tensor_degree > 1,
        )

    return PhazeProblem(
        memory_bytes=problem.hbm_usable_bytes,
        devices=problem.cluster.devices,
        bandwidth_bytes_per_s=problem.cluster.levels[-1].bandwidth_bytes_per_s,
        microbatches=training.microbatches(1),
        recompute=recomputes,
        optimizer=_OPTIMIZERS[training.optimizer],
        nodes={
            tensor_degree: tuple(
                node(place, layer, tensor_degree) for place, layer in enumerate(layers)
            )
            for tensor_degree, layers in problem.layers.items()
        },
        edges={
            tensor_degree: tuple(
                PhazeEdge(source, target, float(layers[source].output_bytes))
                for source, target in problem.edges
            )
            for tensor_degree, layers in problem.layers.items()
        },
    )
