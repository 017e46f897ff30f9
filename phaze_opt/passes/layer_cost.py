"""What a layer costs at one tensor-parallel width: all that a placement takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phaze_opt.arrays import FloatArray


@dataclass(frozen=True)
class LayerCost:
    """One layer at one tensor-parallel width: per device, per microbatch.

    Attributes
    ----------
    name
        The instance's name, unique in the chain (``"block.7"``), or that of its kind where the
        problem names the layers.
    forward_s, backward_s
        Makespans of the layer's schedules, collectives of the tensor-parallel group included.
    recompute_s
        Forward work repeated before the backward under the chosen recompute; else 0.
    parameters, tied_parameters
        See `phaze_opt.workload.graph.Layer`.
    stash_bytes
        Kept per microbatch in flight under the chosen recompute.
    transient_bytes
        Largest working set while the layer runs; under full recompute it includes the layer's
        own full stash.
    output_bytes
        Activation to the next layer (and gradient back).
    forward_link_s, backward_link_s, recompute_link_s
        Seconds for which the tensor-parallel group uses the network, hidden or not.
    """

    name: str
    forward_s: float
    backward_s: float
    recompute_s: float
    parameters: int
    tied_parameters: int
    stash_bytes: int
    transient_bytes: int
    output_bytes: int
    forward_link_s: float = 0.0
    backward_link_s: float = 0.0
    recompute_link_s: float = 0.0

    def with_fields(self, **changes: float | str) -> LayerCost:
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
        At most those of `LayerCost`, per microbatch.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray


def local_parameters(layers: Sequence[LayerCost]) -> int:
    """Count a stage's parameters per device, those tied between its layers once."""
    tied = [layer.tied_parameters for layer in layers]
    return sum([layer.parameters for layer in layers]) - sum(tied) + max(tied, default=0)
