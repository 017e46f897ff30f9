"""Checks least energies, on which bounds depend where the power or the energy matters."""

from __future__ import annotations

import numpy as np

from phaze_opt.bounds.space_chips import EnergyKinds
from phaze_opt.errors import InputError
from phaze_opt.spec.run_inputs import RunInputs
from phaze_opt.study.proving import chosen_inputs
from phaze_opt.whole_space.verification import Check, Verification, require

SAMPLE = 50
"""Number of kinds of chips, each under some combination of options, that are evaluated."""

_NEAR = 1e-9
"""Relative error of sums in another order."""


def check_energies(verification: Verification) -> Check:
    """Evaluate chips of all kinds: no batch may take less than the least energy of its kind."""
    grid, study = verification.grid, verification.certificate.study
    options, sizes, _ = grid.shape
    kinds, draw = grid.chips.energy_kinds, verification.generator
    count = min(SAMPLE, options * len(kinds.chips))
    for place in draw.sample(range(options * len(kinds.chips)), count):
        option, kind = divmod(place, len(kinds.chips))
        row = draw.choice(np.flatnonzero(kinds.of == kind).tolist())
        point = grid.point(option, sizes - 1, row)
        try:
            design = study.design(point)
        except InputError:
            continue  # the options exclude each other
        for index, run in enumerate(verification.metrics(point).runs):
            if run.energy_j_per_batch is not None:
                inputs = chosen_inputs(study, index, design, run)
                least_j = _least_j(verification, inputs, kinds, kind)
                near_j = run.energy_j_per_batch * (1.0 + _NEAR)
                require(least_j <= near_j, "a least energy, below which a batch takes,")
    return Check("energies of kinds of chips", count, options * len(kinds.chips))


def _least_j(verification: Verification, inputs: RunInputs, kinds: EnergyKinds, kind: int) -> float:
    """Return the least energy of a batch, over all tensor degrees and slices."""
    rule = verification.engine.rule
    return min(
        float(rule.least_batch_j(run, variant, kinds)[kind])
        for run in rule.on_slices(inputs)
        for variant in rule.variants(run)
    )
