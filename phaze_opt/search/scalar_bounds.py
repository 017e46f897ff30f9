"""The bounds of boxes once more: one operator, one candidate at a time, in plain Python.

A certificate is checked against these, so that an error of an array or of a compiled loop shows.
They share with `phaze_opt.least_layers` and `phaze_opt.placement.least` what is no bound: captured
graphs, the cost of a collective, and the table of degrees of parallelism with the memory that each
needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.costed_point import chip_rates, training_as_fused
from phaze_opt.estimated_passes import Chip, default_fusion
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.search.bounds import Bounded, Bounds
from phaze_opt.search.objective import RunInputs
from phaze_opt.search.scalar_batches import batch_s
from phaze_opt.search.scalar_passes import layer_s
from phaze_opt.workload.graph import WorkloadVariant


class ScalarBounds(Bounds):
    """Bounds of boxes as `Bounds` has them, but for the order of sums."""

    def least_batch_s(self, inputs: RunInputs, some: Bounded) -> FloatArray:
        """Bound the time of a batch from below; see `Bounds.least_batch_s`."""
        assert some.rooflines
        found = [
            self._of_chip(inputs, chip, sizes)
            for chip, sizes in zip(some.architectures, some.hbm_bytes.T.tolist(), strict=True)
        ]
        return np.array(found).T.reshape(some.hbm_bytes.shape)

    def _of_chip(
        self, inputs: RunInputs, chip: Accelerator, hbm_bytes: Sequence[int]
    ) -> list[float]:
        """Bound the time of a batch with every size of the HBM."""
        cluster, training = inputs.cluster, inputs.training
        fusion = default_fusion(chip)
        as_fused = training_as_fused(training, fusion)
        rates = chip_rates([Chip(chip, cluster, fusion)], as_fused)
        usable = chip.calibration.usable_hbm_share
        usable *= 1.0 - self.study.spec.constraints.min_memory_margin
        best = [math.inf] * len(hbm_bytes)
        for variant in self.variants(inputs):
            layers = _all(variant)
            passes_s = [layer_s(variant, layer, chip, cluster, training) for layer in layers]
            placement = self._placement(inputs.capture, variant, cluster, as_fused, fusion)
            for size, capacity in enumerate(hbm_bytes):
                arrays = placement.candidates_within(capacity * usable)
                least_s = batch_s(passes_s, layers, arrays, as_fused, rates, best[size])
                best[size] = min(best[size], least_s)
        return best


def _all(variant: WorkloadVariant) -> tuple[int, ...]:
    """Return which distinct layer each layer is."""
    return tuple(index for _, index in variant.nodes)
