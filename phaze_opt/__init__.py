"""Co-search of accelerator architecture and device placement for training.

Which accelerator, and which way of spreading the training over many of them, trains a model fastest
within a chip area?

The public names are imported on first use (PEP 562), so that importing the package loads nothing
heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from phaze_opt.printing import DrawsPlots, PrintsAsTables

if TYPE_CHECKING:
    from phaze_opt.errors import (
        ConflictError,
        InfeasibleError,
        InputError,
        NotFoundError,
        PhazeError,
    )
    from phaze_opt.evaluation import Evaluation, evaluate
    from phaze_opt.explanation.explain import explain
    from phaze_opt.hardware.accelerator import Accelerator
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.network.cluster import Cluster
    from phaze_opt.network.presets import load_cluster
    from phaze_opt.placement.placement_problem import Placement
    from phaze_opt.spec.space import Space
    from phaze_opt.spec.study_spec import StudySpec
    from phaze_opt.study.study import Study, create_study, load_study
    from phaze_opt.training import Training
    from phaze_opt.workload.capture.user_module import capture
    from phaze_opt.workload.zoo import load_workload

    __version__: str
    """Of the installed package."""

_NAMES_BY_MODULE = {
    "errors": ("ConflictError", "InfeasibleError", "InputError", "NotFoundError", "PhazeError"),
    "evaluation": ("Evaluation", "evaluate"),
    "explanation.explain": ("explain",),
    "hardware.accelerator": ("Accelerator",),
    "hardware.presets": ("load_accelerator",),
    "network.cluster": ("Cluster",),
    "network.presets": ("load_cluster",),
    "placement.placement_problem": ("Placement",),
    "spec.space": ("Space",),
    "spec.study_spec": ("StudySpec",),
    "study.study": ("Study", "create_study", "load_study"),
    "training": ("Training",),
    "workload.capture.user_module": ("capture",),
    "workload.zoo": ("load_workload",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "Accelerator",
    "Cluster",
    "ConflictError",
    "Evaluation",
    "InfeasibleError",
    "InputError",
    "NotFoundError",
    "PhazeError",
    "Placement",
    "Space",
    "Study",
    "StudySpec",
    "Training",
    "capture",
    "create_study",
    "evaluate",
    "explain",
    "load_accelerator",
    "load_cluster",
    "load_study",
    "load_workload",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its room on first use; the version is read when it is asked for."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("phaze-opt")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__


def _write_as(result: object, form: Literal["text", "html"]) -> str:
    """Write a result as the command line shows it; what draws tables is imported only now."""
    from phaze_opt.report.results import written

    return written(result, form)


def _draw_plot(result: object, kind: str) -> Any:
    """Draw a result as the pages do; what draws is imported only now."""
    from phaze_opt.report.results import drawn

    return drawn(result, kind)


PrintsAsTables.write_as = _write_as
DrawsPlots.draw_plot = _draw_plot
