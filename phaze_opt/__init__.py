"""Co-search of accelerator architecture and device placement for training.

Which accelerator, and which way of spreading the training over many of them, trains a model fastest
within a chip area?

The public names are imported on first use (PEP 562), so that importing the package loads nothing
heavy.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phaze_opt.evaluation import Evaluation, evaluate
    from phaze_opt.hardware.accelerator import Accelerator
    from phaze_opt.network.cluster import Cluster
    from phaze_opt.search.study import Study
    from phaze_opt.training import Training
    from phaze_opt.workload.zoo import load_workload

_HOMES = {
    "Accelerator": "phaze_opt.hardware.accelerator",
    "Cluster": "phaze_opt.network.cluster",
    "Evaluation": "phaze_opt.evaluation",
    "Study": "phaze_opt.search.study",
    "Training": "phaze_opt.training",
    "evaluate": "phaze_opt.evaluation",
    "load_workload": "phaze_opt.workload.zoo",
}

__all__ = [
    "Accelerator",
    "Cluster",
    "Evaluation",
    "Study",
    "Training",
    "evaluate",
    "load_workload",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its room on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__


class _Package(ModuleType):
    """Keeps ``phaze_opt.evaluation`` the function.

    Importing the module of the same name would bind the module over it.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
