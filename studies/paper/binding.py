"""Where the time of a batch goes: what binds its operators, and what stands between them."""

from __future__ import annotations

from studies.paper.comparison import Trained

PASSES = ("forward", "backward", "recompute")
"""Parts of a batch in which operators run."""

GROUPS = {
    "arrays": ("compute",),
    "lanes": ("lanes",),
    "global buffer": ("glb",),
    "HBM": ("hbm",),
    "tensor-parallel network": ("link",),
    "constant per operator": ("overhead",),
    "pipeline and gradients": ("transfer", "gradient_synchronisation", "parameter_gather"),
    "accumulation and optimizer": ("gradient_accumulation", "optimizer"),
    "bubble": ("bubble",),
}
"""What binds, by what `phaze_opt.evaluation.Evaluation` calls it."""

OTHER = "other"


def shares(run: Trained) -> dict[str, float]:
    """Return the share of a batch that each of `GROUPS` binds; nothing where it does not fit.

    The operators of all layers stand for those of the stage with the largest load.
    """
    if run.time_breakdown_s is None or run.bound_by is None:
        return {}
    parts = dict(run.time_breakdown_s)
    whole_s = sum(parts.values())
    passes_s = sum(parts.pop(name, 0.0) for name in PASSES)
    parts |= {name: share * passes_s for name, share in run.bound_by.items()}
    binding = {
        group: sum(parts.pop(name, 0.0) for name in names) / whole_s
        for group, names in GROUPS.items()
    }
    return binding | {OTHER: sum(parts.values()) / whole_s}
