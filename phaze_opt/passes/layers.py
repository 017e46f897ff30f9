"""What every layer of a model costs on one accelerator: its passes, joined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from phaze_opt.on_demand import cached_property
from phaze_opt.passes.bare_layers import (
    all_layers,
    bare_layers,
    copies_s,
    has_twins,
    layer_memory,
)
from phaze_opt.passes.estimates import Chip, EstimatedLayers, estimate_layers
from phaze_opt.passes.graphs import runs_again
from phaze_opt.passes.launches import host_s
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, PassCost
from phaze_opt.passes.offload import behind_link
from phaze_opt.passes.paired import core_share, exchanges_s, paired_s
from phaze_opt.passes.scheduled import ScheduleCache, ScheduledLayer, ScheduleProof, run_layers
from phaze_opt.passes.weight_gradients import with_weight_gradients
from phaze_opt.training import Training
from phaze_opt.workload.graph import Layer, WorkloadVariant


@dataclass(frozen=True)
class LayerEvaluation:
    """One distinct layer at the chosen tensor degree, per device and microbatch.

    Attributes
    ----------
    name, count
        The layer, and how often it occurs.
    forward_s, backward_s, recompute_s
        Makespans, or the time of the host where that is longer; the backward is without the
        recompute before it.
    parameters, stash_bytes
        On one device; the stash under the chosen recompute.
    forward_schedule, backward_schedule, recompute_schedule
        Proofs of the makespans; what runs again has none where it is the whole forward, or nothing.
    bound_by_s
        Operator seconds of one microbatch by the resource that binds each operator, in the mode
        that its schedule chose.
    energy_by_level_j
        Dynamic energy of one microbatch on one device by `ENERGY_LEVELS`, recompute included.
    host_s
        For how long the host launches the kernels of each pass, by its name; empty where it starts
        recorded graphs.
    """

    name: str
    count: int
    forward_s: float
    backward_s: float
    recompute_s: float
    parameters: int
    stash_bytes: int
    forward_schedule: ScheduleProof
    backward_schedule: ScheduleProof
    bound_by_s: Mapping[str, float]
    energy_by_level_j: Mapping[str, float]
    recompute_schedule: ScheduleProof | None = None
    host_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DegreeCost:
    """Everything known about the model at one tensor degree.

    Attributes
    ----------
    variant
        As captured.
    training
        Says what is stashed.
    passes
        The graphs of the distinct layers as they run.
    distinct
        The same as the placement needs them.
    host_s
        See `LayerEvaluation`, by distinct layer.
    """

    variant: WorkloadVariant
    training: Training
    passes: tuple[ScheduledLayer, ...]
    distinct: tuple[LayerCost, ...]
    host_s: tuple[Mapping[str, float], ...]

    @cached_property
    def layers(self) -> tuple[LayerEvaluation, ...]:
        """The distinct layers, evaluated."""
        columns = self.variant.layers, self.variant.counts, self.passes, self.host_s
        rows = zip(*columns, strict=True)
        return tuple([_evaluate_layer(*row, self.training) for row in rows])

    @property
    def chain(self) -> tuple[LayerCost, ...]:
        """Every layer of the model in topological order, with the names of the distinct ones."""
        return all_layers(self.variant, self.distinct)


@dataclass(frozen=True, eq=False)
class EstimatedDegree:
    """The layers of a model at one tensor degree, estimated and not yet scheduled.

    Attributes
    ----------
    variant
        The model at the tensor degree.
    training
        Says what runs again before the backward.
    layers
        Their passes, and the chip.
    """

    variant: WorkloadVariant
    training: Training
    layers: EstimatedLayers

    def least_chain(self, collectives: bool = True) -> tuple[LayerCost, ...]:
        """Return `DegreeCost.chain` with the least that schedules may take, up to rounding.

        Parameters
        ----------
        collectives
            Whether those of the tensor-parallel group take any time.
        """
        least = self.layers.least()
        if not collectives:
            least = [{name: cost.without_link() for name, cost in own.items()} for own in least]
        return all_layers(self.variant, self._layer_costs(least, pairs=collectives))

    @property
    def has_twins(self) -> bool:
        """Whether distinct layers hold the same bytes, so that only their seconds may differ."""
        return has_twins(self.variant, self.training, self.layers.chip.fusion)

    def cost(self, cache: ScheduleCache | None) -> DegreeCost:
        """Schedule every distinct layer.

        Parameters
        ----------
        cache
            Schedules by content; solved ones are added.
        """
        passes = tuple(
            [
                scheduled if layer.has_backward else replace(scheduled, again=None)
                for layer, scheduled in zip(
                    self.variant.layers,
                    run_layers(self.layers, self.training, cache),
                    strict=True,
                )
            ]
        )
        distinct = self._layer_costs([own.costs for own in passes])
        if self.training.splits_backward:
            backwards = [own.backward for own in passes]
            distinct = tuple(map(with_weight_gradients, distinct, backwards))
        return DegreeCost(self.variant, self.training, passes, distinct, self._host_s)

    @cached_property
    def _host_s(self) -> tuple[Mapping[str, float], ...]:
        """Seconds in which the host launches the kernels of every distinct layer."""
        fusion, rate = self.layers.chip.fusion, self.layers.chip.host_rate
        return tuple([host_s(layer, self.training, fusion, rate) for layer in self.variant.layers])

    def _layer_costs(
        self, passes: Sequence[Mapping[str, PassCost]], pairs: bool = True
    ) -> tuple[LayerCost, ...]:
        """Reduce every distinct layer to what the placement needs."""
        bare = bare_layers(self.variant, self.training, self.layers.chip.fusion)
        layers = self.variant.layers
        costs = tuple(map(self._layer_cost, layers, bare, passes, self._host_s))
        if not (pairs and self.training.pairs_microbatches):
            return costs
        cluster, chip = self.layers.chip.cluster, self.layers.chip.accelerator
        share = core_share(self.training, cluster, chip.calibration.collective_core_share)
        sent = exchanges_s(self.variant, self.training, cluster)
        by_itself = map(self._layer_cost, layers, bare, passes, [{}] * len(bare))
        return tuple(
            [
                cost.with_fields(
                    paired_s=float(
                        paired_s(
                            own.passes.seconds,
                            sent_s,
                            share,
                            max(self._launched_s(layer, host_s), self._link_s(own)),
                        )
                    )
                )
                if sent_s > 0.0
                else cost
                for layer, cost, own, sent_s, host_s in zip(
                    layers, costs, by_itself, sent, self._host_s, strict=True
                )
            ]
        )

    def _launched_s(self, layer: Layer, host_s: Mapping[str, float]) -> float:
        """Return the time in which the host launches all passes of a layer."""
        if not host_s:
            return 0.0
        again_s = runs_again(layer, host_s, self.training) or 0.0
        return host_s["forward"] + host_s["backward"] + again_s

    def _layer_cost(
        self,
        layer: Layer,
        bare: LayerCost,
        passes: Mapping[str, PassCost],
        host_s: Mapping[str, float],
    ) -> LayerCost:
        """Give one distinct layer its seconds."""
        if host_s:
            passes = {name: cost.waiting_for(host_s[name]) for name, cost in passes.items()}
        rate = self.layers.chip.accelerator.memory_bytes_per_s
        copies = copies_s(bare.parameters, self.training, rate)
        forward, backward = (
            PassCost(passes[name].seconds + copy_s, passes[name].link_s)
            for name, copy_s in zip(("forward", "backward"), copies, strict=True)
        )
        again = runs_again(layer, passes, self.training) or PassCost()
        own = LayerPasses(forward, backward, again)
        if bare.offloaded_bytes == 0:
            return bare.with_fields(passes=own)
        behind = behind_link(own, self._link_s(bare))
        return bare.with_fields(passes=behind, link_exposed_s=behind.seconds - own.seconds)

    def _link_s(self, bare: LayerCost) -> float:
        """Return how long what a layer offloads is on the link to the host, each way."""
        link_bytes_per_s = self.layers.chip.accelerator.host_link_bytes_per_s or math.inf
        return bare.offloaded_bytes / link_bytes_per_s


def estimate_degrees(
    variants: Sequence[WorkloadVariant], chips: Sequence[Chip], training: Training
) -> list[dict[int, EstimatedDegree]]:
    """Estimate every distinct layer of some variants on some chips.

    Parameters
    ----------
    variants, chips, training
        See `phaze_opt.passes.estimates.estimate_layers`.

    Returns
    -------
    For every chip, by tensor degree.
    """
    return [
        {
            variant.tensor_parallel: EstimatedDegree(variant, training, layers)
            for variant, layers in zip(variants, of_chip, strict=True)
        }
        for of_chip in estimate_layers(variants, chips, training)
    ]


def _evaluate_layer(
    layer: Layer,
    count: int,
    passes: ScheduledLayer,
    host_s: Mapping[str, float],
    training: Training,
) -> LayerEvaluation:
    """Join the passes of one layer."""
    again = passes.recompute
    seconds = {
        name: cost.waiting_for(host_s.get(name, 0.0)).seconds for name, cost in passes.costs.items()
    }
    return LayerEvaluation(
        name=layer.name,
        count=count,
        forward_s=seconds["forward"],
        backward_s=seconds["backward"],
        recompute_s=runs_again(layer, seconds, training) or 0.0,
        parameters=layer.parameters,
        stash_bytes=layer_memory(layer, training, "none").kept_bytes,
        forward_schedule=passes.forward.proof,
        backward_schedule=passes.backward.proof,
        bound_by_s=passes.bound_by_s,
        energy_by_level_j=passes.energy_by_level_j,
        recompute_schedule=None if again is None or again is passes.forward else again.proof,
        host_s=host_s,
    )
