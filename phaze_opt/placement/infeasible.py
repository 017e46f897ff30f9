"""What to say when nothing fits: which stage or layer, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.errors import InfeasibleError
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.placement.candidates import most_data
from phaze_opt.placement.chain_bytes import ChainBytes, chain_bytes, held_by_runs
from phaze_opt.placement.deep_stages import ChainSums, tightest
from phaze_opt.placement.fitting_stages import tightest_split
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import Misfit, PlacementProblem, StageMemory
from phaze_opt.placement.size import tables_fit
from phaze_opt.training import Training
from phaze_opt.units import counted, format_bytes


class MisfitError(InfeasibleError):
    """A stage needs more memory than there is.

    Parameters
    ----------
    message
        Which stage, and by how much.
    memory
        What the stage holds.
    usable_bytes
        What it may hold.
    nearest
        The fullest stage of the placement that needs least memory, where that is another one.
    """

    def __init__(
        self,
        message: str,
        memory: StageMemory,
        usable_bytes: float,
        nearest: Misfit | None = None,
    ) -> None:
        own = Misfit(memory, usable_bytes)
        super().__init__(message, violation=own.excess_bytes / usable_bytes)
        self.memory = memory
        self.usable_bytes = usable_bytes
        self.misfit = nearest or own

    def again(self) -> MisfitError:
        """Return an equal error that was not raised before."""
        return MisfitError(str(self), self.memory, self.usable_bytes, self.misfit)


def explain_excess(name: str, memory: StageMemory, problem: PlacementProblem) -> MisfitError:
    """Say by how much what a stage, as a person calls it, holds exceeds the memory."""
    over = memory.total - problem.hbm_usable_bytes
    return MisfitError(
        f"{name} needs {format_bytes(memory.total)} per device "
        f"(parameters {format_bytes(memory.parameters)}, "
        f"gradients {format_bytes(memory.gradients)}, "
        f"optimizer {format_bytes(memory.optimizer)}, "
        f"stashes {format_bytes(memory.stash)}, "
        f"working set {format_bytes(memory.transient)}), "
        f"{format_bytes(over)} more than the usable {format_bytes(problem.hbm_usable_bytes)}.",
        memory,
        problem.hbm_usable_bytes,
    )


def explain_infeasible(problem: PlacementProblem) -> InfeasibleError:
    """Say why no placement fits, by the layer or stage that comes closest to fitting.

    That depends on bytes only, and is found once for all designs that share them.
    """
    names = problem.names_of(max(problem.layers))
    outline = problem.outline
    held = tuple([(tensor, chain_bytes(outline, tensor)) for tensor in sorted(outline.layers)])
    given = problem.cluster, problem.training, problem.hbm_usable_bytes
    return _known_reason(names, held, *given).again()


@lru_cache(maxsize=256)
def _known_reason(
    names: tuple[str, ...],
    held: tuple[tuple[int, ChainBytes], ...],
    cluster: Cluster,
    training: Training,
    hbm_usable_bytes: float,
) -> InfeasibleError:
    """Do as `explain_infeasible`, cached."""
    layers = {
        tensor: tuple(
            [layer.with_fields(name=name) for name, layer in zip(names, chain.layers, strict=True)]
        )
        for tensor, chain in held
    }
    return _explain(PlacementProblem(layers, (), cluster, training, hbm_usable_bytes, math.inf))


def _explain(problem: PlacementProblem) -> InfeasibleError:
    """Find the reason."""
    devices = problem.cluster.devices
    tensor_degrees = [tensor for tensor in sorted(problem.layers) if tensor <= devices]
    if not tensor_degrees:
        return InfeasibleError(
            f"No tensor degree fits {counted(devices, 'device')}: the smallest is "
            f"{min(problem.layers)}.",
            violation=min(problem.layers) / devices - 1,
        )
    worst = [_largest_layer(problem, tensor) for tensor in tensor_degrees]
    memory, tensor, layer = min(worst, key=lambda entry: (entry[0].total, entry[1]))
    if memory.total > problem.hbm_usable_bytes:
        name = f"Layer {layer.name!r} alone, at the tensor degree {tensor},"
        alone = explain_excess(name, memory, problem)
        nearest = explain_tightest_split(problem).misfit
        return MisfitError(str(alone), alone.memory, alone.usable_bytes, nearest)
    return explain_tightest_split(problem)


def _largest_layer(problem: PlacementProblem, tensor: int) -> tuple[StageMemory, int, LayerCost]:
    """Return the layer that needs most memory alone on the last stage, and its tensor degree."""
    optimizer = problem.training.state
    shards = Shards.of(problem.training.zero, _most_data(problem, tensor, 1))
    alone = [
        (stage_memory([layer], 1, optimizer, shards), layer) for layer in problem.layers[tensor]
    ]
    memory, layer = max(alone, key=lambda entry: entry[0].total)
    return memory, tensor, layer


def explain_tightest_split(problem: PlacementProblem) -> MisfitError:
    """Name the stage that does not fit in the split that needs least memory.

    What it needs is the least memory with which the problem has a placement (without interleaving).

    Parameters
    ----------
    problem
        With a tensor degree of no more devices than there are.
    """
    problem = problem.outline
    tensor_degrees = [
        tensor for tensor in sorted(problem.layers) if tensor <= problem.cluster.devices
    ]
    tightest = [_least_memory_split(problem, tensor) for tensor in tensor_degrees]
    split = min(tightest, key=lambda split: (split.need_bytes, split.tensor))
    layers, starts = problem.layers[split.tensor], split.starts
    ends = [*starts[1:], len(layers)]
    held = _held(problem, split.data, len(starts))[:0:-1]
    optimizer, shards = problem.training.state, split.shards
    needs = [
        stage_memory(layers[i:j], count, optimizer, shards)
        for i, j, count in zip(starts, ends, held, strict=True)
    ]
    stage = max(range(len(needs)), key=lambda index: needs[index].total)
    i, j = starts[stage], ends[stage]
    name = (
        f"Even the split that needs least memory, {counted(len(starts), 'stage')} at the "
        f"tensor degree {split.tensor}, does not fit: stage {stage + 1} "
        f"({layers[i].name!r} to {layers[j - 1].name!r})"
    )
    return explain_excess(name, needs[stage], problem)


@dataclass(frozen=True)
class _TightSplit:
    """The split that needs least memory at one tensor degree: bytes, replicas, and first layers."""

    need_bytes: float
    tensor: int
    data: int
    shards: Shards
    starts: list[int]


def _most_data(problem: PlacementProblem, tensor: int, stages: int) -> int:
    """Return the most replicas of so many stages that devices and batch allow; at least one."""
    return max(1, most_data(tensor * stages, problem.cluster, problem.training))


def _held(problem: PlacementProblem, data: int, stages: int) -> list[int]:
    """Return the microbatches in flight by place from the end of the pipeline."""
    training = problem.training
    microbatches = training.microbatches(data)
    held: list[int] = held_by_place(stages, microbatches, training.schedule_of_chunk).tolist()
    return held


def _least_memory_split(problem: PlacementProblem, tensor: int) -> _TightSplit:
    """Split the chain so that its fullest stage holds least, over any number of stages."""
    devices, layers = problem.cluster.devices, problem.layers[tensor]
    splits = []
    for data in _data_degrees(problem, tensor):
        # What a stage holds depends on its place only, so one pass serves all numbers of stages.
        most_stages = min(len(layers), devices // (tensor * data))
        held = np.array(_held(problem, data, most_stages), dtype=np.int64)
        need_bytes, starts = _tightest(problem, tensor, data, held)
        shards = Shards.of(problem.training.zero, data)
        splits.append(_TightSplit(need_bytes, tensor, data, shards, starts.tolist()))
    return min(splits, key=lambda split: (split.need_bytes, split.data))


def _tightest(
    problem: PlacementProblem, tensor: int, data: int, held: IntArray
) -> tuple[float, IntArray]:
    """Return the split with so many replicas whose fullest stage holds least, and how much."""
    layers, optimizer = problem.layers[tensor], problem.training.state
    if problem.training.zero == 0 and not tables_fit(len(layers), 1):
        return tightest(ChainSums.of(layers, np.zeros(len(layers)), optimizer), held)
    shards, usable_bytes = Shards.of(problem.training.zero, data), problem.hbm_usable_bytes
    runs = held_by_runs(chain_bytes(problem, tensor), optimizer, shards, usable_bytes)
    return tightest_split(runs.resident_bytes, runs.stash_bytes, held)


def _data_degrees(problem: PlacementProblem, tensor: int) -> list[int]:
    """Return the numbers of replicas among which that with the least memory is.

    Of as many stages, more replicas share out more, and hold fewer microbatches where they have
    fewer than stages in flight (all of them under GPipe).
    """
    training, devices = problem.training, problem.cluster.devices
    layers = len(problem.layers[tensor])
    always = training.zero > 0 or training.schedule_of_chunk == "gpipe"

    def matters(data: int) -> bool:
        return always or training.microbatches(data) < min(layers, devices // (tensor * data))

    most = {_most_data(problem, tensor, stages) for stages in range(1, layers + 1)}
    fewest = training.context_parallel
    return sorted({fewest} | {data for data in most if data * tensor <= devices and matters(data)})
