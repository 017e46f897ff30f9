"""What a layer costs at one tensor degree: all that a placement takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phaze_opt.arrays import FloatArray, IntArray


class PassCost(NamedTuple):
    """What a pass takes, and for how long the tensor-parallel group uses the network in it."""

    seconds: float = 0.0
    link_s: float = 0.0

    def waiting_for(self, other_s: float) -> PassCost:
        """Return the pass beside something that takes so long: a host, or its link."""
        return self if self.seconds >= other_s else PassCost(other_s, self.link_s)

    def without_link(self) -> PassCost:
        """Bound what the pass takes from below, however fast the network is."""
        return PassCost(max(self.seconds - self.link_s, 0.0))


class LayerPasses(NamedTuple):
    """The passes of a layer; `PASS_COLUMNS` names the numbers of each.

    Attributes
    ----------
    forward, backward
        Makespans of their schedules, collectives of the tensor-parallel group included.
    recompute
        Forward work repeated before the backward under the chosen recompute.
    """

    forward: PassCost = PassCost()
    backward: PassCost = PassCost()
    recompute: PassCost = PassCost()

    @classmethod
    def of(cls, *seconds: float) -> LayerPasses:
        """Build passes that do not use the network."""
        return cls(*map(PassCost, seconds))

    @property
    def seconds(self) -> float:
        """Seconds of all passes."""
        return sum([each.seconds for each in self])

    @property
    def link_s(self) -> float:
        """Seconds on the network of all passes."""
        return sum([each.link_s for each in self])


PASS_COLUMNS = tuple(
    [f"{name}.{part}" for name in LayerPasses._fields for part in PassCost._fields]
)
"""``forward.seconds``, ``forward.link_s`` and so on."""


@dataclass(frozen=True)
class LayerCost:
    """One layer at one tensor degree: per device, per microbatch.

    Attributes
    ----------
    name
        The instance's name, unique in the chain (``"block.7"``), or that of its kind where the
        problem names the layers.
    passes
        What each of them takes.
    parameters, tied_parameters
        Those of `phaze_opt.workload.graph.Layer` that are trained.
    stash_bytes
        Kept per microbatch in flight under the chosen recompute.
    transient_bytes
        Largest working set while the layer runs; under full recompute it includes the layer's
        own full stash.
    output_bytes
        Activation to the next layer (and gradient back).
    returns_gradient
        Whether that gradient comes back, which the layer or one before it needs where it is
        trained.
    routed_parameters, elsewhere_parameters
        Those among ``parameters`` that are a share of the routed experts, and as many for each of
        the other replicas that hold the experts with this one; 0 where experts are not shared out.
    accumulated_parameters
        Those among ``parameters`` whose gradients products of the backward add up, see
        `phaze_opt.workload.fused_accumulation`.
    frozen_parameters, frozen_tied_parameters
        Those beside them that are not trained, and those of these that another layer holds too.
    wide_parameters, wide_tied_parameters
        Those of both whose products stay in 16 bits, so that they have no narrow copies, and those
        of these that another layer holds too; 0 where that changes nothing.
    paired_s
        Seconds of all passes together where those of two microbatches run beside one another, see
        `phaze_opt.passes.paired`; 0 where that changes nothing.
    offloaded_bytes
        Sent to the host after the forward and back before the backward; ``stash_bytes`` is without
        them, ``transient_bytes`` with what of them is on the device.
    link_exposed_s
        By how much that makes ``passes`` take longer.
    weight_gradient_s
        Seconds of the backward that only weight gradients need, see
        `phaze_opt.passes.weight_gradients`; 0 where no schedule splits it.
    weight_operand_bytes
        What stays of a microbatch from the rest of its backward until these have run.
    """

    name: str
    passes: LayerPasses
    parameters: int
    tied_parameters: int
    stash_bytes: int
    transient_bytes: int
    output_bytes: int
    routed_parameters: int = 0
    elsewhere_parameters: int = 0
    accumulated_parameters: int = 0
    frozen_parameters: int = 0
    frozen_tied_parameters: int = 0
    wide_parameters: int = 0
    wide_tied_parameters: int = 0
    returns_gradient: bool = True
    paired_s: float = 0.0
    offloaded_bytes: int = 0
    link_exposed_s: float = 0.0
    weight_gradient_s: float = 0.0
    weight_operand_bytes: int = 0

    def with_fields(self, **changes: object) -> LayerCost:
        """Return the same layer with other fields.

        A model has hundreds of layers, so nothing is checked; `dataclasses.replace` takes ten times
        as long.
        """
        other = object.__new__(LayerCost)
        values = other.__dict__
        values.update(self.__dict__)
        values.update(changes)
        return other


@dataclass(frozen=True, eq=False)
class LeastLayers:
    """Least seconds of layers; every array has the shape ``(distinct layers, accelerators)``.

    Attributes
    ----------
    forward_s, backward_s, recompute_s
        At most those of `LayerPasses`, per microbatch.
    pairs
        The same of microbatches that run beside another one, see `phaze_opt.passes.paired`;
        ``None`` where none does.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    pairs: LeastLayers | None = None

    @property
    def all_s(self) -> FloatArray:
        """Seconds of all passes."""
        return self.forward_s + self.backward_s + self.recompute_s

    @property
    def table_bytes(self) -> int:
        """Size of the arrays."""
        own_bytes = self.forward_s.nbytes + self.backward_s.nbytes + self.recompute_s.nbytes
        return own_bytes + (0 if self.pairs is None else self.pairs.table_bytes)

    def some(self, which: IntArray) -> LeastLayers:
        """Return those of some accelerators."""
        return LeastLayers(
            self.forward_s[:, which],
            self.backward_s[:, which],
            self.recompute_s[:, which],
            None if self.pairs is None else self.pairs.some(which),
        )


def local_parameters(layers: Sequence[LayerCost]) -> int:
    """Count a stage's parameters per device, those tied between its layers once."""
    tied = [layer.tied_parameters for layer in layers]
    return sum([layer.parameters for layer in layers]) - sum(tied) + max(tied, default=0)


def local_frozen_parameters(layers: Sequence[LayerCost]) -> int:
    """Count a stage's parameters per device that are not trained, those tied among them once."""
    tied = [layer.frozen_tied_parameters for layer in layers]
    return sum([layer.frozen_parameters for layer in layers]) - sum(tied) + max(tied, default=0)


def local_wide_parameters(layers: Sequence[LayerCost]) -> int:
    """Count a stage's parameters per device without narrow copies, those tied once."""
    tied = [layer.wide_tied_parameters for layer in layers]
    return sum([layer.wide_parameters for layer in layers]) - sum(tied) + max(tied, default=0)


def added_parameters(layers: Sequence[LayerCost]) -> int:
    """Count a stage's parameters per device whose gradients are added up beside the passes.

    Tied ones count once; where the products of one of their layers add theirs up, those of the
    others.
    """
    beside = sum([layer.parameters - layer.accumulated_parameters for layer in layers])
    return min(beside, local_parameters(layers))
