"""What the placement takes and gives: layers with seconds and bytes, and stages over devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.checked import check_fields
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees, RankOrderText
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.layer_cost import PASS_COLUMNS, LayerCost
from phaze_opt.printing import PrintsAsTables
from phaze_opt.training import Training
from phaze_opt.units import format_seconds

Rates = TypeVar("Rates", float, FloatArray)

_PROVEN = 1e-9
"""Relative difference up to which a bound and a time are the same."""


class Kinds(NamedTuple):
    """How the layers of a chain repeat.

    Attributes
    ----------
    first, counts
        The first layer of every kind, and how many there are.
    which : (layers,)
        Place of the kind of every layer in ``first``.
    """

    first: tuple[int, ...]
    counts: tuple[int, ...]
    which: IntArray


@lru_cache(maxsize=64)
def repetition(kinds: tuple[int, ...]) -> Kinds:
    """Return how layers of some kinds repeat."""
    _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
    return Kinds(tuple(first.tolist()), tuple(np.bincount(which).tolist()), which)


@dataclass(frozen=True)
class PlacementProblem:
    """A model's layers on a cluster of identical devices.

    Attributes
    ----------
    layers
        By tensor degree: the same layers, in the same topological order.
    edges
        ``(source, destination)`` between layers; a chain for transformers.
    cluster
        Its ``devices`` are how many may be used.
    hbm_usable_bytes
        Memory of one device that a stage may fill: of its HBM, or without one of its global buffer.
    hbm_bytes_per_s
        Sustained bandwidth of that memory (gradient accumulation, optimizer step).
    step_parameters_per_s, accumulation_parameters_per_s
        What the vector lanes of one device can update, and accumulate; by default they never bind.
    collective_core_share
        Share of a device's cores that communication takes while it runs beside compute.
    least
        The layers of every tensor degree with at most their seconds, and else as they are, names
        aside; layers that are alike here are alike there. Where they are given, ``layers`` of a
        tensor degree are looked at only if it may be the fastest: finding them may take long.
    kinds
        A number for every layer, equal for layers that differ in nothing but the name at every
        tensor degree; all may differ by default. A hundred layers of four kinds are then read four
        times.
    names
        Of the layers, all different; by default those that the layers have themselves.
    merged_from
        The chain whose layers are merged into these.
    host_bytes_per_s
        Of the link to the host, each way; by default it never binds.
    """

    layers: Mapping[int, tuple[LayerCost, ...]]
    edges: tuple[tuple[int, int], ...]
    cluster: Cluster
    training: Training
    hbm_usable_bytes: float
    hbm_bytes_per_s: float
    step_parameters_per_s: float = math.inf
    accumulation_parameters_per_s: float = math.inf
    collective_core_share: float = 0.0
    least: Mapping[int, tuple[LayerCost, ...]] | None = None
    kinds: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    merged_from: MergedFrom | None = None
    host_bytes_per_s: float = math.inf

    def names_of(self, tensor: int) -> tuple[str, ...]:
        """Return the names of the layers, which a tensor degree may have itself."""
        return self.names or tuple([layer.name for layer in self.layers[tensor]])

    def kinds_of(self, tensor: int) -> Kinds:
        """Return how the layers of a tensor degree repeat."""
        kinds = self.kinds
        return repetition(tuple(range(len(self.layers[tensor]))) if kinds is None else kinds)

    def column(self, tensor: int, name: str) -> FloatArray:
        """Return one of `PASS_COLUMNS` of all layers at a degree, which nobody may change."""
        if tensor not in self._columns:
            layers, kinds = self.layers[tensor], self.kinds_of(tensor)
            passes = chain.from_iterable([layers[index].passes for index in kinds.first])
            numbers = np.fromiter(chain.from_iterable(passes), np.float64)
            rows = numbers.reshape(-1, len(PASS_COLUMNS)).T.take(kinds.which, 1)
            self._columns[tensor] = dict(zip(PASS_COLUMNS, rows, strict=True))
        return self._columns[tensor][name]

    def paired_s(self, tensor: int) -> FloatArray:
        """Return that attribute of all layers at a degree, see `LayerCost`."""
        layers, kinds = self.layers[tensor], self.kinds_of(tensor)
        return np.array([layers[index].paired_s for index in kinds.first])[kinds.which]

    def weight_gradients(self, tensor: int) -> tuple[FloatArray, FloatArray]:
        """Return ``weight_gradient_s`` and ``weight_operand_bytes`` of all layers at a degree."""
        layers, kinds = self.layers[tensor], self.kinds_of(tensor)
        pairs = [
            (layers[index].weight_gradient_s, layers[index].weight_operand_bytes)
            for index in kinds.first
        ]
        seconds, operand_bytes = np.array(pairs, dtype=np.float64).T[:, kinds.which]
        return seconds, operand_bytes

    @cached_property
    def _columns(self) -> dict[int, dict[str, FloatArray]]:
        """What `column` has returned, by tensor degree and name."""
        return {}

    @cached_property
    def outline(self) -> PlacementProblem:
        """The same with the least seconds: all that questions of bytes and shapes need."""
        return self if self.least is None else replace(self, layers=self.least, least=None)

    @property
    def step_s_per_parameter(self) -> float:
        """Time of the optimizer step per parameter: HBM, lanes or the link to the host."""
        # What waits on the host comes in and goes out at the same time, beside the step.
        return max(self.device_step_s_per_parameter, self.host_s_per_parameter)

    @property
    def device_step_s_per_parameter(self) -> float:
        """The same, however fast the link to the host is."""
        moved_bytes = self.training.step_bytes
        return float(s_per_parameter(moved_bytes, self.hbm_bytes_per_s, self.step_parameters_per_s))

    @property
    def host_s_per_parameter(self) -> float:
        """Time on the link to the host, each way, of what of its state waits there."""
        return self.training.offloaded_state_bytes / self.host_bytes_per_s

    @property
    def cast_s_per_parameter(self) -> float:
        """Time per local parameter to cast the weights after the step, at HBM bandwidth."""
        return self.training.cast_bytes / self.hbm_bytes_per_s

    @property
    def accumulation_s_per_parameter(self) -> float:
        """Time per local parameter to add one microbatch's gradients to the accumulator."""
        moved_bytes = self.training.state.accumulation_bytes
        rate = self.accumulation_parameters_per_s
        return float(s_per_parameter(moved_bytes, self.hbm_bytes_per_s, rate))


@dataclass(frozen=True, eq=False)
class MergedFrom:
    """A chain of which runs of layers are merged into one each, see `phaze_opt.placement.deep`.

    Attributes
    ----------
    problem
        With the chain.
    starts : (merged layers,)
        First layer of each.
    """

    problem: PlacementProblem
    starts: IntArray

    @cached_property
    def places(self) -> IntArray:
        """The merged layer that begins with each layer, −1 where none does, and the end."""
        count = len(next(iter(self.problem.outline.layers.values())))
        places = np.full(count + 1, -1, dtype=np.int64)
        places[np.append(self.starts, count)] = np.arange(len(self.starts) + 1)
        return places


@dataclass(frozen=True, eq=False)
class ChipRates:
    """What the placement takes from accelerators; every array has the shape ``(accelerators,)``.

    The attributes are those of `PlacementProblem`.
    """

    hbm_usable_bytes: FloatArray
    hbm_bytes_per_s: FloatArray
    step_parameters_per_s: FloatArray
    accumulation_parameters_per_s: FloatArray
    collective_core_share: FloatArray

    def some(self, which: IntArray) -> ChipRates:
        """Return those of some accelerators."""
        return ChipRates(*(vars(self)[field.name][which] for field in fields(self)))


def s_per_parameter(moved_bytes: float, hbm_bytes_per_s: Rates, parameters_per_s: Rates) -> Rates:
    """Return seconds per parameter: moving bytes at HBM bandwidth, or on the lanes if slower."""
    slower: Rates = np.maximum(moved_bytes / hbm_bytes_per_s, 1.0 / parameters_per_s)
    return slower


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each device of a stage, by kind."""

    parameters: int
    gradients: int
    optimizer: int
    stash: int
    transient: int

    @property
    def total(self) -> int:
        """All kinds together."""
        return self.parameters + self.gradients + self.optimizer + self.stash + self.transient


@dataclass(frozen=True)
class Misfit:
    """A stage that does not fit: what it holds on each device, and what it may hold.

    Of the placements that were asked for, it is in the one that is nearest to fitting, so that a
    memory of ``memory.total`` usable bytes is the least with which the point fits.
    """

    memory: StageMemory
    usable_bytes: float

    @property
    def excess_bytes(self) -> float:
        """How much it is too much."""
        return self.memory.total - self.usable_bytes


CommunicationKind = Literal[
    "transfer",
    "gradient_synchronisation",
    "parameter_gather",
    "offload",
    "tensor_collectives",
    "token_exchanges",
]


@dataclass(frozen=True)
class Communication:
    """One kind of communication of a stage, per device and batch.

    Attributes
    ----------
    kind
        ``transfer`` (activations and gradients that the stage receives), ``parameter_gather``,
        ``gradient_synchronisation``, ``offload`` (what goes to the host and comes back: activations
        and optimizer state), or of the layers, in explanations, ``tensor_collectives`` and
        ``token_exchanges`` (tokens to their experts, and back).
    total_s, exposed_s
        Seconds on the network, and those by which they make the stage take longer.
    sent_bytes
        What a device sends; of transfers, what the sender sends.
    """

    kind: CommunicationKind
    total_s: float
    exposed_s: float
    sent_bytes: float

    @property
    def hidden_s(self) -> float:
        """Seconds that run beside compute."""
        return self.total_s - self.exposed_s


@dataclass(frozen=True)
class ChunkWork:
    """What a stage does for one microbatch on one chunk of its layers, as the replay has it.

    Attributes
    ----------
    forward_s, backward_s
        Receives, exposed communication of the replicas and gradient accumulation included.
    recompute_s
        The part of ``backward_s`` that runs forward work again, first.
    first_saving_s
        By how much the first microbatch's backward is shorter.
    head_s
        Before which the first microbatch's forward cannot start.
    weight_gradient_s
        The part of ``backward_s`` that makes weight gradients and adds them up, where the schedule
        splits the backward; it is shorter by ``first_saving_s`` once.
    stash_bytes, operand_bytes
        What a microbatch holds then from its forward to its backward, and from there to its weight
        gradients.
    """

    forward_s: float
    backward_s: float
    recompute_s: float
    first_saving_s: float = 0.0
    head_s: float = 0.0
    weight_gradient_s: float = 0.0
    stash_bytes: float = 0.0
    operand_bytes: float = 0.0


@dataclass(frozen=True)
class Stage:
    """Layers on ``devices`` devices (the tensor-parallel group), consecutive unless interleaved.

    Attributes
    ----------
    load_s
        Time of one microbatch forward and backward, transfers and gradient accumulation included.
    work
        The same by chunk; one chunk unless interleaved.
    synchronisation_s, optimizer_s
        After the last backward of a batch: exposed gradient synchronisation, optimizer step.
    gather_s
        Weights gathered once per batch (ZeRO 1 and 2): before the first forward where they overlap
        with compute, else after the optimizer step.
    communication
        With the other stages of the replica and with the other replicas. What the tensor-parallel
        group sends belongs to the layers.
    room_bytes
        What microbatches may hold, where the schedule splits the backward.
    """

    layers: tuple[str, ...]
    devices: int
    load_s: float
    memory_bytes: StageMemory
    work: tuple[ChunkWork, ...]
    synchronisation_s: float
    optimizer_s: float
    gather_s: float
    communication: tuple[Communication, ...]
    room_bytes: float = 0.0


PlacementStatus = Literal["optimal", "feasible"]
"""What is proven of a placement that was searched for; see `Placement`."""


@dataclass(frozen=True, repr=False)
class Placement(PrintsAsTables):
    """Stages and degrees, with the time of one batch.

    Attributes
    ----------
    pipeline, data, tensor
        The degrees; ``pipeline × data × context × tensor`` devices are used.
    rank_order
        Whether the replicas of a stage are neighbours, or the stages of a replica, or some replicas
        stand inside the stages and others outside.
    pipeline_schedule
        How the stages alternate forwards and backwards; see `phaze_opt.training.Training`.
    microbatches
        Per replica and batch: ``ceil(global_batch / (data · microbatch))``.
    stages
        From the first (embedding) to the last (loss).
    time_per_batch_s
        As the event replay of the pipeline finds it.
    time_breakdown_s
        By kind, along the stage with the largest load; sums to ``time_per_batch_s``. Kinds:
        forward, backward, recompute, transfer, gradient_accumulation, optimizer,
        gradient_synchronisation, parameter_gather (ZeRO 3 only), bubble.
    status, bound_s, gap
        Where the placement was searched for: ``optimal`` if no degrees, rank order and split into
        consecutive layers (interleaved: into even parts) take less, else ``feasible``; a time that
        none of them is below; and ``(time − bound) / time``. ``None`` where it was given.
    expert
        Among how many replicas, which are neighbours, the routed experts are shared out.
    context
        Devices that share every sequence.
    expert_tensor
        Devices over which each routed expert is split; 0 for those of the tensor-parallel group.
    order
        Which of `phaze_opt.placement.zero_bubble.ORDERS` the stages take, where the schedule splits
        the backward. It is searched for degrees that are given too, so that they have a bound.
    replicas_inside
        How many replicas stand inside the stages where others stand outside; else 0.
    """

    pipeline: int
    data: int
    tensor: int
    rank_order: RankOrderText
    pipeline_schedule: PipelineScheduleName
    microbatches: int
    stages: tuple[Stage, ...]
    time_per_batch_s: float
    time_breakdown_s: Mapping[str, float]
    status: PlacementStatus | None = None
    bound_s: float | None = None
    gap: float | None = None
    expert: int = 1
    context: int = 1
    expert_tensor: int = 0
    order: int | None = None
    replicas_inside: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return (
            f"Placement({self.degrees_text}, {self.pipeline_schedule}, {self.microbatches:,} "
            f"microbatches, {format_seconds(self.time_per_batch_s)} per batch)"
        )

    def searched(self, bound_s: float) -> Placement:
        """Return the placement with what a search for a faster one has proven.

        Parameters
        ----------
        bound_s
            A time that no placement is below.
        """
        time_s = self.time_per_batch_s
        if bound_s >= time_s * (1.0 - _PROVEN):
            return replace(self, status="optimal", bound_s=time_s, gap=0.0)
        return replace(self, status="feasible", bound_s=bound_s, gap=1.0 - bound_s / time_s)

    @property
    def degrees_text(self) -> str:
        """The degrees as ``PPxDPxTP``, with those of experts and sequences as far as shared."""
        return self.degrees.text

    @property
    def degrees(self) -> Degrees:
        """The degrees of parallelism."""
        return Degrees(
            self.pipeline, self.data, self.tensor, expert=self.expert, context=self.context
        )

    @property
    def devices(self) -> int:
        """Devices that are used."""
        return self.degrees.devices
