"""Numbers of a chip that nobody stated and that decide the answer nevertheless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.evaluation import Evaluation

LEAST_SHARE = 0.1
"""Share of the time from which an assumed number is worth a warning."""

_FIELDS_BY_RESOURCE = {
    "compute": ("clock_hz", "calibration.array_efficiency"),
    "lanes": ("clock_hz",),
    "glb": ("glb_bytes_per_cycle", "l2_tc_bytes"),
    "hbm": ("hbm_bytes_per_s", "calibration.hbm_efficiency"),
    "overhead": ("calibration.operator_overhead_s",),
}
"""Numbers that set the rate of a resource. A larger private buffer reads the global one less."""


@dataclass(frozen=True)
class BindingAssumption:
    """A field that a chip's file leaves out, and what it binds.

    Attributes
    ----------
    field, origin
        Its name, and where its value comes from.
    resource
        One of `phaze_opt.estimator.estimate.RESOURCES`; ``memory`` where the run does not fit.
    share
        Of all operator seconds, that the resource binds; 1 for memory.
    """

    field: str
    origin: str
    resource: str
    share: float


def binding_assumptions(
    assumed: Mapping[str, str], evaluation: Evaluation
) -> list[BindingAssumption]:
    """Return the assumed fields that bind more than a tenth of the time.

    Parameters
    ----------
    assumed
        `phaze_opt.hardware.chip_file.AcceleratorPreset.assumed`.
    evaluation
        Of a run on that chip.
    """
    assumptions = [
        BindingAssumption(field, assumed[field], resource, share)
        for resource, share in evaluation.bound_by_share.items()
        if share > LEAST_SHARE
        for field in _FIELDS_BY_RESOURCE.get(resource, ())
        if field in assumed
    ]
    if evaluation.misfit is not None and "hbm_bytes" in assumed:
        assumptions.append(BindingAssumption("hbm_bytes", assumed["hbm_bytes"], "memory", 1.0))
    return assumptions
