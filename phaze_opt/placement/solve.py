"""The placement of a model: degrees of parallelism and pipeline stages with the least batch time.

`solve_placement` ranks all degrees by lower bounds, splits the promising ones exactly by the closed
form (`phaze_opt.placement.chain`), and reports the event replay's time, which also judges the even
splits, so that no given PPxDPxTP is ever better than the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.placement.candidates import Candidate, CandidateCosts, CandidateGrid
from phaze_opt.placement.chain import TIE, best_split, least_loads
from phaze_opt.placement.costs import Floats, Integers
from phaze_opt.placement.even import even_starts, replay_bounds
from phaze_opt.placement.infeasible import explain_infeasible, explain_misfit
from phaze_opt.placement.memory import stage_memory
from phaze_opt.placement.pipeline import finish_s
from phaze_opt.placement.problem import Placement, PlacementProblem, Stage

REPLAY_MARGIN = 0.02
"""Splits whose closed form is this close to the best one are replayed too."""


def solve_placement(
    problem: PlacementProblem, degrees: tuple[int, int, int] | None = None
) -> Placement:
    """Find the placement with the least time per batch, or evaluate given degrees.

    Parameters
    ----------
    problem
        Layers with their costs, the cluster, the training options and the memory.
    degrees
        ``(pipeline, data, tensor)``: the layers are then split evenly by count. By default all
        degrees and splits are searched.

    Raises
    ------
    InputError
        If the tensor degree is not among the problem's widths.
    InfeasibleError
        If nothing fits; the message says which stage or layer does not, and by how much.
    """
    _check(problem)
    costs = CandidateCosts(problem)
    if degrees is not None:
        return _given(problem, costs, degrees)
    found = _search(costs)
    if found is None:
        raise explain_infeasible(problem)
    return _placement(problem, costs, *found)


def _check(problem: PlacementProblem) -> None:
    """Refuse problems that no placement can answer."""
    lengths = {len(layers) for layers in problem.layers.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError("Every tensor-parallel width must have the same layers, at least one.")
    (count,) = lengths
    for source, destination in problem.edges:
        if not 0 <= source < destination < count:
            raise InputError(
                f"The edge ({source}, {destination}) must go forward between the {count} layers."
            )


def _given(
    problem: PlacementProblem, costs: CandidateCosts, degrees: tuple[int, int, int]
) -> Placement:
    """Evaluate the even split of given degrees, or say why it cannot run."""
    pipeline, data, tensor = degrees
    label = f"{pipeline}x{data}x{tensor}"
    if min(degrees) < 1:
        raise InputError(f"The degrees {label} must all be at least 1.")
    if tensor not in problem.layers:
        allowed = ", ".join(str(width) for width in sorted(problem.layers))
        raise InputError(f"The tensor-parallel width {tensor} is not among {allowed}.")
    layers, training, devices = problem.layers[tensor], problem.training, problem.cluster.devices
    if pipeline * data * tensor > devices:
        raise InfeasibleError(
            f"{label} needs {pipeline * data * tensor} devices, but there are {devices}."
        )
    if pipeline > len(layers):
        raise InfeasibleError(f"{label} has more stages than the {len(layers)} layers.")
    if data * training.microbatch > training.global_batch:
        raise InfeasibleError(
            f"{label} with microbatch {training.microbatch} needs a global batch of at least "
            f"{data * training.microbatch}, but it is {training.global_batch}."
        )
    starts = even_starts(layers, pipeline)
    orders = (True,) if len(problem.cluster.levels) == 1 else (True, False)
    answers = []
    for data_inside in orders:
        candidate = Candidate.of(pipeline, data, tensor, data_inside)
        _refuse_misfit(problem, costs, candidate, starts)
        answers.append((_replayed_s(costs, candidate, starts), candidate))
    _, candidate = min(answers, key=lambda answer: answer[0])
    return _placement(problem, costs, candidate, starts)


def _refuse_misfit(
    problem: PlacementProblem, costs: CandidateCosts, candidate: Candidate, starts: Integers
) -> None:
    """Raise for the stage that exceeds the memory most."""
    layers = problem.layers[candidate.tensor]
    in_flight = _held(costs, candidate)
    over = []
    for stage, (i, j) in enumerate(_bounds(starts, len(layers))):
        memory = stage_memory(layers[i:j], in_flight[stage], costs.optimizer)
        over.append(memory.total - problem.hbm_usable_bytes)
    stage = max(range(len(over)), key=lambda index: over[index])
    if over[stage] > 0:
        i, j = _bounds(starts, len(layers))[stage]
        name = (
            f"Stage {stage + 1} of {candidate.pipeline} "
            f"({layers[i].name!r} to {layers[j - 1].name!r})"
        )
        raise explain_misfit(name, layers[i:j], in_flight[stage], problem)


def _held(costs: CandidateCosts, candidate: Candidate) -> list[int]:
    """Return the microbatches in flight on every stage."""
    microbatches = costs.microbatches(candidate.data)
    return [min(candidate.pipeline - s, microbatches) for s in range(candidate.pipeline)]


def _bounds(starts: Integers, layers: int) -> list[tuple[int, int]]:
    """Return first and last + 1 layer of every stage."""
    first = [int(start) for start in starts]
    return list(zip(first, [*first[1:], layers], strict=True))


def _search(costs: CandidateCosts) -> tuple[Candidate, Integers] | None:
    """Return the candidate and the first layers of its stages with the least replayed time."""
    known: list[tuple[float, Candidate, tuple[int, ...]]] = [
        (_replayed_s(costs, candidate, starts), candidate, tuple(int(s) for s in starts))
        for candidate, starts in _closed_form_answers(costs)
    ]
    best_s = min((entry[0] for entry in known), default=np.inf)
    for bound_s, candidate, starts in _even_splits(costs):
        if bound_s > best_s * (1.0 + TIE):
            break
        time_s = _replayed_s(costs, candidate, starts)
        best_s = min(best_s, time_s)
        known.append((time_s, candidate, tuple(int(s) for s in starts)))
    if not known:
        return None
    close = [entry for entry in known if entry[0] <= best_s * (1.0 + TIE)]
    _, candidate, chosen = min(close, key=lambda entry: (entry[1], entry[2]))
    return candidate, np.asarray(chosen, dtype=np.int64)


def _closed_form_answers(costs: CandidateCosts) -> list[tuple[Candidate, Integers]]:
    """Return the best split of every candidate whose closed form is near the least of all."""
    best_s = np.inf
    answers: list[tuple[float, Candidate, Integers]] = []
    grids = list(costs.grids())
    work_s = [_least_work_s(costs, grid) for grid in grids]
    bounds_s = [
        work + costs.least_tail_s(grid, _first_stage_parameters(costs, grid))
        for work, grid in zip(work_s, grids, strict=True)
    ]
    for index, entry in _by_bound(grids, bounds_s):
        known_s = best_s * (1.0 + REPLAY_MARGIN)
        if bounds_s[index][entry] > known_s:
            break
        level, candidate = grids[index].level, grids[index].candidate(entry)
        if work_s[index][entry] + costs.least_tail_term_s(candidate, level) > known_s:
            continue
        stages = costs.stages(candidate.tensor, level)
        time_s, starts = best_split(
            stages.load_s,
            stages.backward_work_s,
            costs.tail_s(candidate, level),
            stages.in_flight_limit,
            costs.microbatches(candidate.data),
            candidate.pipeline,
            known_s,
        )
        if np.isfinite(time_s):
            best_s = min(best_s, time_s)
            answers.append((time_s, candidate, starts))
    return [
        (candidate, starts)
        for time_s, candidate, starts in answers
        if time_s <= best_s * (1.0 + REPLAY_MARGIN)
    ]


def _by_bound(
    grids: Sequence[CandidateGrid], bounds_s: Sequence[Floats]
) -> Iterator[tuple[int, int]]:
    """Yield grid and entry of the finite bounds by rising value; ties as candidates are ordered."""
    if not grids:
        return
    bound_s = np.concatenate(bounds_s)
    grid_index = np.repeat(np.arange(len(grids)), [len(grid.data) for grid in grids])
    entry = np.concatenate([np.arange(len(grid.data)) for grid in grids])
    data = np.concatenate([grid.data for grid in grids])
    pipeline = np.concatenate([grid.pipeline for grid in grids])
    tensor = np.concatenate([np.full(len(grid.data), grid.tensor) for grid in grids])
    order = np.lexsort((grid_index, tensor, data, pipeline, pipeline * data * tensor, bound_s))
    for index in order:
        if not np.isfinite(bound_s[index]):
            return
        yield int(grid_index[index]), int(entry[index])


def _least_work_s(costs: CandidateCosts, grid: CandidateGrid) -> Floats:
    """Bound ``(m − 1) · max L + Σ L`` of every candidate of a grid from below."""
    stages = costs.stages(grid.tensor, grid.level)
    most_stages = int(grid.pipeline.max())
    unlimited = int(grid.microbatches.max()) + most_stages
    largest, total = least_loads(stages.load_s, stages.in_flight_limit, unlimited, most_stages)
    # With fewer microbatches than stages less is in flight; one microbatch bounds them all.
    largest_1, total_1 = least_loads(stages.load_s, stages.in_flight_limit, 1, most_stages)
    many = grid.pipeline <= grid.microbatches
    most_s = np.where(many, largest[grid.pipeline], largest_1[grid.pipeline])
    sum_s = np.where(many, total[grid.pipeline], total_1[grid.pipeline])
    fits = np.isfinite(most_s)
    most_s[~fits] = 0.0
    return np.asarray(np.where(fits, (grid.microbatches - 1) * most_s + sum_s, np.inf))


def _first_stage_parameters(costs: CandidateCosts, grid: CandidateGrid) -> Integers:
    """Return the fewest parameters that the first stage of every candidate can hold."""
    parameters = costs.stages(grid.tensor, grid.level).parameters
    fewest = np.where(grid.pipeline == 1, parameters[0, -1], parameters[0, 1])
    return np.asarray(fewest, dtype=np.int64)


def _even_splits(costs: CandidateCosts) -> Iterator[tuple[float, Candidate, Integers]]:
    """Yield even splits by rising lower bound of their replayed time."""
    grids = list(costs.grids())
    if not grids:
        return
    layers = costs.problem.layers[grids[0].tensor]
    count = len(layers)
    starts = np.zeros((count + 1, count), dtype=np.int64)
    for stages in range(1, count + 1):
        starts[stages, :stages] = even_starts(layers, stages)
    bounds_s = []
    for grid in grids:
        table = costs.stages(grid.tensor, grid.level)
        replayed_s = replay_bounds(
            table.load_s, table.in_flight_limit, starts, grid.pipeline, grid.microbatches
        )
        second = starts[grid.pipeline, np.minimum(1, count - 1)]
        first_end = np.where(grid.pipeline == 1, count, second)
        bounds_s.append(replayed_s + costs.least_tail_s(grid, table.parameters[0, first_end]))
    for index, entry in _by_bound(grids, bounds_s):
        candidate = grids[index].candidate(entry)
        bound_s = float(bounds_s[index][entry])
        yield bound_s, candidate, starts[candidate.pipeline, : candidate.pipeline]


def _replayed_s(costs: CandidateCosts, candidate: Candidate, starts: Integers) -> float:
    """Return the time of a batch by event replay, with synchronisation and optimizer step."""
    level = costs.level(candidate)
    stages = costs.stages(candidate.tensor, level)
    ends = np.append(starts[1:], stages.layers)
    finish = finish_s(
        stages.forward_work_s[starts, ends],
        stages.backward_work_s[starts, ends],
        costs.microbatches(candidate.data),
    )
    return float((finish + costs.tail_s(candidate, level)[starts, ends]).max())


def _placement(
    problem: PlacementProblem, costs: CandidateCosts, candidate: Candidate, starts: Integers
) -> Placement:
    """Describe a split in full."""
    level = costs.level(candidate)
    table = costs.stages(candidate.tensor, level)
    layers = problem.layers[candidate.tensor]
    bounds = _bounds(starts, len(layers))
    held = _held(costs, candidate)
    stages = tuple(
        Stage(
            layers=tuple(layer.name for layer in layers[i:j]),
            devices=candidate.tensor,
            load_s=float(table.load_s[i, j]),
            memory_bytes=stage_memory(layers[i:j], held[index], costs.optimizer),
        )
        for index, (i, j) in enumerate(bounds)
    )
    time_s = _replayed_s(costs, candidate, starts)
    heaviest = max(range(len(stages)), key=lambda index: (stages[index].load_s, -index))
    return Placement(
        pipeline=candidate.pipeline,
        data=candidate.data,
        tensor=candidate.tensor,
        microbatches=costs.microbatches(candidate.data),
        stages=stages,
        time_per_batch_s=time_s,
        time_breakdown_s=_breakdown(costs, candidate, bounds[heaviest], time_s),
    )


def _breakdown(
    costs: CandidateCosts, candidate: Candidate, stage: tuple[int, int], time_s: float
) -> dict[str, float]:
    """Split the time by kind along one stage; the bubble is what it waits."""
    level = costs.level(candidate)
    table = costs.stages(candidate.tensor, level)
    microbatches = costs.microbatches(candidate.data)
    transfer_s = table.receive_activation_s + table.receive_gradient_s
    parts = {
        "forward": microbatches * float(table.forward_s[stage]),
        "backward": microbatches * float(table.backward_s[stage]),
        "recompute": microbatches * float(table.recompute_s[stage]),
        "transfer": microbatches * float(transfer_s[stage]),
        "gradient_accumulation": microbatches * float(table.accumulation_s[stage]),
        "optimizer": float(costs.optimizer_s(candidate.tensor, level)[stage]),
        "gradient_synchronisation": float(costs.synchronisation_s(candidate, level)[stage]),
    }
    parts["bubble"] = max(0.0, time_s - sum(parts.values()))
    return parts
