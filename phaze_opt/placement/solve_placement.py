"""The placement of a model: degrees of parallelism and pipeline stages with the least batch time.

`solve_placement` ranks all degrees by lower bounds, splits the promising ones exactly by the closed
form (`phaze_opt.placement.chain`), and reports the event replay's time. What may still be faster
when it is replayed is searched too, best bound first: the answer is optimal, or says how far it may
be from that (`phaze_opt.placement.proof`). No given PPxDPxTP is ever better than it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.degrees import Degrees, order_of_text
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.placement.best import best_placement, layout_fits
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, given_candidates, most_data
from phaze_opt.placement.deep import is_deep, place_split, solve_deep
from phaze_opt.placement.describe import describe
from phaze_opt.placement.even import even_starts
from phaze_opt.placement.given_split import given_starts
from phaze_opt.placement.held_stages import HeldStage, held_stages
from phaze_opt.placement.infeasible import explain_excess, explain_infeasible
from phaze_opt.placement.interleaved import evaluate_interleaved, solve_interleaved
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.size import ONE_CANDIDATE, check_memory
from phaze_opt.placement.split_backward import (
    even_layouts,
    folded,
    place_split_backward,
    solve_split_backward,
    with_split_backward,
)
from phaze_opt.placement.timing import with_fastest_gathers
from phaze_opt.training import Training


def solve_placement(
    problem: PlacementProblem,
    degrees: Degrees | None = None,
    stages: tuple[int, ...] | None = None,
) -> Placement:
    """Find the placement with the least time per batch, or evaluate given degrees.

    Parameters
    ----------
    problem
        Layers with their costs, the cluster, the training options and the memory.
    degrees
        The layers are then split evenly by count, and nothing is
        proven. By default all degrees and splits are searched.
    stages
        Layers of each stage of given degrees, if not even, as
        `phaze_opt.placement.given_split.given_starts` counts them.

    Raises
    ------
    InputError
        If the tensor degree is not among the problem's tensor degrees, or the stages do not add up.
    InfeasibleError
        If nothing fits; the message says which stage or layer does not, and by how much.
    """
    _check(problem)
    if degrees is None:
        _check_replicas(problem)
        if problem.training.zero_group:
            raise InputError(
                f"zero_group is {problem.training.zero_group}, but the placement is to be found; "
                "give its degrees, since only for all replicas is the fastest one known."
            )
    if degrees is None and is_deep(problem):
        return solve_deep(problem)
    costs = CandidateCosts(problem)
    if degrees is not None:
        return _given(problem, costs, degrees, stages)
    if problem.training.interleave > 1:
        return solve_interleaved(costs)
    if problem.training.splits_backward:
        return solve_split_backward(costs)
    best = best_placement(costs)
    if best is None:
        raise explain_infeasible(problem)
    layout, done, bound_s = best
    costs.release()
    return describe(costs, layout, done).searched(bound_s)


def place_again(problem: PlacementProblem, placement: Placement) -> Placement:
    """Place the layers of a problem as they were placed for another one, and time the result.

    Parameters
    ----------
    problem
        With the same layers, at other costs; it must fit.
    placement
        Says the degrees, the order of ranks, and which layers each stage holds. Interleaved stages
        are even parts.
    """
    costs, candidate = CandidateCosts(problem), placed_candidate(placement)
    if problem.training.interleave > 1:
        return evaluate_interleaved(costs, candidate)
    starts = layer_starts(placement)
    if is_deep(problem):
        again = place_split(problem, candidate, starts)
        if again is not None:
            return again
        check_memory(costs.layers, problem.cluster.devices, [ONE_CANDIDATE])
    layout = Layout.of_starts(candidate, starts, costs.layers)
    if placement.pipeline_schedule == "zb-v":
        return place_split_backward(costs, [folded(costs, candidate)])
    if problem.training.splits_backward:
        return place_split_backward(costs, [with_split_backward(costs, layout)])
    return describe(costs, *with_fastest_gathers(costs, layout))


def placed_candidate(placement: Placement) -> Candidate:
    """Return the degrees of a placement and the order of its ranks."""
    order = order_of_text(placement.rank_order)
    return Candidate.of(placement.degrees.as_replicas, order, placement.replicas_inside)


def layer_starts(placement: Placement) -> IntArray:
    """Return the first layers of the stages of a placement, each of one chunk."""
    sizes = [len(stage.layers) for stage in placement.stages]
    return np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def _check(problem: PlacementProblem) -> None:
    """Refuse problems that no placement can answer."""
    lengths = {len(layers) for layers in problem.outline.layers.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError("Every tensor degree must have the same layers, at least one.")
    _check_edges(problem.edges, *lengths)


def _check_replicas(problem: PlacementProblem) -> None:
    """Refuse more devices of an expert- or context-parallel group than there can be replicas."""
    training = problem.training
    fewest = min(problem.layers)
    most = most_data(fewest, problem.cluster, training)
    if training.context_parallel > 1 and training.replica_step(fewest) > most:
        raise InfeasibleError(
            f"context_parallel is {training.context_parallel} and expert_parallel is "
            f"{training.expert_parallel}, but at most {most} of the {problem.cluster.devices} "
            "devices can hold the same layers, of which there must be a multiple of both."
        )
    apart = training.expert_tensor_parallel
    shares = [(training.fewest_replicas(tensor), tensor) for tensor in problem.layers]
    if any(share <= max(most_data(own, problem.cluster, training), 1) for share, own in shares):
        return
    split = f" and expert_tensor_parallel {apart}" if apart else ""
    raise InfeasibleError(
        f"expert_parallel is {training.expert_parallel}{split}, but there are at most {most} "
        f"replicas on {problem.cluster.devices} devices with {training.global_batch} samples per "
        "batch."
    )


@lru_cache(maxsize=64)
def _check_edges(edges: tuple[tuple[int, int], ...], count: int) -> None:
    """Refuse edges that do not go forward; the designs of a study share them."""
    for source, destination in edges:
        if not 0 <= source < destination < count:
            raise InputError(
                f"The edge ({source}, {destination}) must go forward between the {count} layers."
            )


def _given(
    problem: PlacementProblem,
    costs: CandidateCosts,
    degrees: Degrees,
    stages: tuple[int, ...] | None,
) -> Placement:
    """Evaluate the even split of given degrees, or a given one, or say why it cannot run."""
    pipeline, data, tensor = degrees.pipeline, degrees.data, degrees.tensor
    context = problem.training.context_parallel
    label = degrees.sharing_sequences(context).text
    if data % context:
        raise InfeasibleError(
            f"{degrees.text} has {data} replicas, but with a context_parallel of {context} there "
            "must be a multiple of it."
        )
    if min(degrees) < 1:
        raise InputError(f"The degrees {label} must all be at least 1.")
    if tensor not in problem.layers:
        allowed = ", ".join(str(tensor_degree) for tensor_degree in sorted(problem.layers))
        raise InputError(f"The tensor degree {tensor} is not among {allowed}.")
    layers, training, devices = problem.layers[tensor], problem.training, problem.cluster.devices
    if degrees.devices > devices:
        raise InfeasibleError(f"{label} needs {degrees.devices} devices, but there are {devices}.")
    if pipeline > len(layers):
        raise InfeasibleError(f"{label} has more stages than the {len(layers)} layers.")
    samples = data // context * training.microbatch
    if samples > training.global_batch:
        raise InfeasibleError(
            f"{label} with microbatch {training.microbatch} needs a global batch of at least "
            f"{samples}, but it is {training.global_batch}."
        )
    _refuse_replicas(label, data, tensor, training)
    candidates = given_candidates(degrees, problem.cluster, training)
    if stages is not None and training.interleave > 1:
        raise InputError(
            f"stages is {','.join(map(str, stages))}, but interleave is {training.interleave}; "
            "stages of several chunks are even parts."
        )
    if training.interleave > 1:
        answers = [evaluate_interleaved(costs, candidate) for candidate in candidates]
        return min(answers, key=lambda answer: answer.time_per_batch_s)
    check_memory(len(layers), devices, [ONE_CANDIDATE])
    if stages is None:
        starts = even_starts(layers, pipeline)
    else:
        starts = given_starts(stages, problem.names_of(tensor), pipeline)
    layouts = [Layout.of_starts(candidate, starts, len(layers)) for candidate in candidates]
    if training.splits_backward:
        ways = [each for candidate in candidates for each in even_layouts(costs, candidate)]
        if stages is not None:
            fitting = [layout for layout in layouts if layout_fits(costs, layout)]
            ways = [with_split_backward(costs, layout) for layout in fitting]
        if ways:
            return place_split_backward(costs, ways)
    # What a stage holds does not depend on the order of ranks.
    held = held_stages(costs, layouts[0])
    _refuse_misfit(costs, layouts[0], held)
    options = [with_fastest_gathers(costs, layout) for layout in layouts]
    return describe(costs, *min(options, key=lambda option: option[1].time_s), held)


def _refuse_replicas(label: str, data: int, tensor: int, training: Training) -> None:
    """Raise where so many replicas do not make whole groups, of experts and of what is shared."""
    if data % training.sharing(data):
        raise InfeasibleError(
            f"{label} has {data} replicas, but with a zero_group of {training.zero_group} there "
            "must be a multiple of it."
        )
    shares = training.expert_step(tensor)
    if training.sharing(data) % shares and data % shares == 0:
        raise InfeasibleError(
            f"{label} has groups of {training.sharing(data)} replicas that ZeRO shares out among, "
            f"but the routed experts are spread over {shares}; zero_group must be 0 or a multiple "
            "of it."
        )
    if data < training.fewest_replicas(tensor) and data % shares == 0:
        raise InfeasibleError(
            f"{label} has {data} replica, but its {tensor} devices have all experts more than "
            f"once with an expert_parallel of {training.expert_parallel} and an "
            f"expert_tensor_parallel of {training.expert_tensor_parallel}, which is known from 2 "
            "replicas on."
        )
    if data % shares:
        apart = training.expert_tensor_parallel
        split = f", an expert_tensor_parallel of {apart}" if apart else ""
        multiple = f"{shares}" if apart else "it"
        raise InfeasibleError(
            f"{label} has {data} replicas, but with an expert_parallel of "
            f"{training.expert_parallel}{split} there must be a multiple of {multiple}."
        )


def _refuse_misfit(costs: CandidateCosts, layout: Layout, held: Sequence[HeldStage]) -> None:
    """Raise for the stage that exceeds the memory most."""
    memories = [each.memory for each in held]
    stage = max(range(len(memories)), key=lambda index: memories[index].total)
    if memories[stage].total > costs.problem.hbm_usable_bytes:
        names = layout.layers(stage, costs.problem.names_of(layout.candidate.tensor))
        name = f"Stage {stage + 1} of {len(memories)} ({names[0]!r} to {names[-1]!r})"
        raise explain_excess(name, memories[stage], costs.problem)
