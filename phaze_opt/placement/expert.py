"""How people place the known models by hand."""

from __future__ import annotations

from functools import cache

from phaze_opt.codec import data_rows
from phaze_opt.degrees import Degrees
from phaze_opt.errors import look_up


@cache
def expert_placements() -> dict[str, tuple[int, int]]:
    """Return pipeline and tensor degree by model, from ``data/expert_placements.csv``."""
    return {
        row["model"]: (int(row["pipeline"]), int(row["tensor"]))
        for row in data_rows("placement", "expert_placements.csv")
    }


def expert_degrees(model: str, devices: int) -> Degrees:
    """Return the expert's degrees.

    The data degree is as many replicas as the devices hold, as in the source at 1024 devices, and
    at least one, which may not fit.

    Parameters
    ----------
    model
        A model of the table; what a captured one is named after a comma, its attention, does not
        move the layers.
    devices
        How many there are.

    Raises
    ------
    InputError
        If the table does not have the model.
    """
    name, *_ = model.split(",")
    pipeline, tensor = look_up(expert_placements(), name, "model with an expert placement")
    return Degrees(pipeline, max(1, devices // (pipeline * tensor)), tensor)
