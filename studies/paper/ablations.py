"""What changes when one thing of the setting, or of the cost model, is another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.spec.study_spec import StudySpec
from studies.paper.settings import changed

FREE = 1000.0
"""A thousand times the rate costs next to nothing."""

_GLB_BYTES_PER_CYCLE = 4096
_HBM_GB_PER_S = 1200
_NETWORK_BYTES_PER_S = 2.0**32
"""Of the paper's setting."""

_FREE_GLB = {"glb_bytes_per_cycle": int(FREE) * _GLB_BYTES_PER_CYCLE}
_FREE_HBM = {"hbm_gb_per_s": FREE * _HBM_GB_PER_S}
_FREE_NETWORK = {"network.0.bandwidth_bytes_per_s": FREE * _NETWORK_BYTES_PER_S}


@dataclass(frozen=True)
class Ablation:
    """A variant of the setting of the paper, in which every chip is searched again.

    Attributes
    ----------
    words
        For tables.
    fields, axes
        Of the study that are others.
    has_experts
        Whether the expert placements still exist.
    """

    name: str
    words: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)
    has_experts: bool = True

    def study(self, spec: StudySpec) -> StudySpec:
        """Return the variant of a study."""
        return changed(spec, self.name, self.axes, **self.fields)


ABLATIONS = (
    Ablation("one-wide", "no tensor parallelism", {"tensor_parallel": (1,)}, has_experts=False),
    Ablation("no-recompute", "recompute never", axes={"recompute": "none"}),
    Ablation("fused-attention", "fused attention", {"attention": "flash"}),
    Ablation("overlap", "gradients go out during the backward", {"overlap": "data"}),
    Ablation("residency", "tensors may stay on the chip", {"residency": True}),
    Ablation("free-glb", "traffic of the global buffer is free", axes=_FREE_GLB),
)
"""Options of the training run, and multicast: traffic between the global buffer and the cores that
costs nothing is the most that any multicast could save."""

NETWORK = Ablation("free-network", "network a thousand times as fast", axes=_FREE_NETWORK)
MEMORY = Ablation("free-memory", "memory traffic is free", axes=_FREE_GLB | _FREE_HBM)
BOTH = Ablation("free-both", "network and memory free", axes=_FREE_GLB | _FREE_HBM | _FREE_NETWORK)
AS_PUBLISHED = (NETWORK, MEMORY, BOTH)
"""Errors of the published code put back. Its clock is a thousand times too slow, so that compute
takes milliseconds where communication takes microseconds; its times do not see the bandwidths of
the memories."""
