"""Where the time of the busiest stage goes, and what fills the memory of the fullest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.explanation.binding import PassBinding
from phaze_opt.hardware.energy import energy_constants
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.passes.layers import DegreeCost
from phaze_opt.passes.scheduled import ScheduledLayer
from phaze_opt.placement.placement_problem import (
    Communication,
    CommunicationKind,
    Placement,
    StageMemory,
)
from phaze_opt.units import J_PER_PJ

_NETWORK = ENERGY_LEVELS.index("network")


@dataclass(frozen=True)
class LayerBinding:
    """What binds one distinct layer, per device and microbatch; the names are of the layer."""

    name: str
    count: int
    forward: PassBinding
    backward: PassBinding
    recompute: PassBinding | None


@dataclass(frozen=True)
class StageTime:
    """Where a batch's time goes on the stage with the largest load.

    Attributes
    ----------
    stage, stages
        Its place, from 0, and how many there are.
    layers
        What it holds.
    load_s, microbatches
        Time of one microbatch, and how many there are.
    parts_s
        By kind; they add up to the time per batch. ``forward`` and ``backward`` are without the
        communication in the tensor-parallel group, which is ``tensor_collectives``, and of the
        devices that share experts out, which is ``token_exchanges``: as much of it as no other
        operator hides. ``recompute`` has its own communication in it. The other kinds
        are those of `phaze_opt.placement.placement_problem.Placement`.
    communication
        How much of each kind runs beside compute, and how much does not.
    """

    stage: int
    stages: int
    layers: tuple[str, ...]
    load_s: float
    microbatches: int
    parts_s: Mapping[str, float]
    communication: tuple[Communication, ...]


@dataclass(frozen=True)
class MemoryUse:
    """What the fullest stage holds on each device.

    Attributes
    ----------
    stage
        Its place, from 0; ``None`` where nothing fits and the stage is that of the placement
        nearest to fitting.
    bytes_by_kind
        Adding up to ``total_bytes``.
    usable_bytes, hbm_bytes
        What may be held, and the nominal HBM; 0 where there is none, so that the global buffer
        holds it.
    """

    stage: int | None
    bytes_by_kind: Mapping[str, int]
    total_bytes: int
    usable_bytes: float
    hbm_bytes: int

    @property
    def excess_bytes(self) -> float:
        """How much it is too much; not positive where it fits."""
        return self.total_bytes - self.usable_bytes


MEMORY_KINDS = ("parameters", "gradients", "optimizer", "stash", "transient")


def memory_use(
    memory: StageMemory, stage: int | None, usable_bytes: float, hbm_bytes: int
) -> MemoryUse:
    """Lay out what a stage holds by kind.

    Parameters
    ----------
    memory, stage
        What it holds, and its place.
    usable_bytes, hbm_bytes
        Of each device.
    """
    by_kind = {kind: int(getattr(memory, kind)) for kind in MEMORY_KINDS}
    return MemoryUse(stage, by_kind, memory.total, usable_bytes, hbm_bytes)


def fullest_stage(placement: Placement) -> int:
    """Return the place of the stage that holds most, the first of equal ones."""
    totals = [stage.memory_bytes.total for stage in placement.stages]
    return totals.index(max(totals))


def stage_time(
    placement: Placement,
    names: Mapping[str, str],
    layers: tuple[LayerBinding, ...],
    cost: DegreeCost,
) -> StageTime:
    """Say where the time goes on the stage with the largest load.

    Parameters
    ----------
    placement
        With its breakdown, which is along that stage.
    names
        Distinct layer by instance (``block.7`` is a ``block``).
    layers
        What binds the distinct layers.
    cost
        Of all layers at the placement's tensor degree.
    """
    loads_s = [stage.load_s for stage in placement.stages]
    busiest = loads_s.index(max(loads_s))
    stage = placement.stages[busiest]
    by_name = {layer.name: layer for layer in layers}
    own = [by_name[names[instance]] for instance in stage.layers]
    parts_s, microbatches = dict(placement.time_breakdown_s), placement.microbatches
    held = {instance: names[instance] for instance in stage.layers}
    chain = zip(cost.variant.names, cost.chain, strict=True)
    costs = [layer for name, layer in chain if name in held]
    joules = {layer.name: layer.energy_by_level_j["network"] for layer in cost.layers}
    price_j = energy_constants().network_pj_per_byte * J_PER_PJ
    rows = zip(cost.layers, cost.passes, strict=True)
    exchanged = {layer.name: _exchanged(passes) for layer, passes in rows}
    exchanges_s, exchanges_j = (
        sum(exchanged[name][part] for name in held.values()) for part in (0, 1)
    )
    network: list[tuple[CommunicationKind, float, float]] = [
        (
            "tensor_collectives",
            sum(layer.passes.link_s for layer in costs) - exchanges_s,
            sum(joules[name] for name in held.values()) - exchanges_j,
        )
    ]
    if exchanges_s > 0.0:
        network.append(("token_exchanges", exchanges_s, exchanges_j))
    communication = []
    for kind, total_s, total_j in network:
        exchanges = kind == "token_exchanges"
        on_path_s = {
            "forward": sum(layer.forward.communication_s(exchanges) for layer in own),
            "backward": sum(layer.backward.communication_s(exchanges) for layer in own),
        }
        if exchanges and cost.training.pairs_microbatches:
            on_path_s = _left_of_pairs_s(placement, costs, on_path_s)
        for name, each_s in on_path_s.items():
            parts_s[name] -= microbatches * each_s
        parts_s[kind] = microbatches * sum(on_path_s.values())
        exposed_s = sum(
            binding.network_s(exchanges)
            for layer in own
            for binding in (layer.forward, layer.backward, layer.recompute)
            if binding is not None
        )
        if exchanges and cost.training.pairs_microbatches:
            exposed_s = min(exposed_s, sum(on_path_s.values()))
        communication.append(
            Communication(
                kind=kind,
                total_s=microbatches * total_s,
                exposed_s=microbatches * exposed_s,
                sent_bytes=microbatches * total_j / price_j,
            )
        )
    return StageTime(
        stage=busiest,
        stages=len(placement.stages),
        layers=stage.layers,
        load_s=stage.load_s,
        microbatches=placement.microbatches,
        parts_s=parts_s,
        communication=(*communication, *stage.communication),
    )


def _left_of_pairs_s(
    placement: Placement, layers: Sequence[LayerCost], on_path_s: Mapping[str, float]
) -> dict[str, float]:
    """Return the exchanges of a microbatch that no other one hides, as parts of both passes.

    Parameters
    ----------
    placement
        With its breakdown.
    layers
        Of the busiest stage.
    on_path_s
        Exchanges of forward and backward that are not hidden in their own pass.
    """
    parts_s = {name: placement.time_breakdown_s[name] for name in on_path_s}
    together_s = sum(placement.time_breakdown_s[name] for name in LayerPasses._fields)
    apart_s = sum(layer.passes.seconds for layer in layers)
    saved_s = apart_s - together_s / placement.microbatches
    left_s = min(max(sum(on_path_s.values()) - saved_s, 0.0), together_s)
    whole_s = sum(parts_s.values())
    return {name: left_s * part_s / whole_s for name, part_s in parts_s.items()}


def _exchanged(passes: ScheduledLayer) -> tuple[float, float]:
    """Return seconds on the network, and joules there, of the exchanges of a layer's tokens."""
    all_s = all_j = 0.0
    for scheduled in passes.all():
        chosen, operators = scheduled.chosen, scheduled.graph.operators
        for index, operator in enumerate(operators):
            if operator.is_exchange:
                all_s += float(chosen.link_s[index])
                all_j += float(chosen.energy_by_level_j[index, _NETWORK])
    return all_s, all_j
