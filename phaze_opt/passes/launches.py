"""Kernels that the host launches in a pass, and for how long that takes it.

A pass takes at least as long as the host needs to launch its kernels: where these are short, the
device waits for the host. How many there are follows from the captured graph:

* ``graphs``: none; a recorded graph of kernels, or a program of XLA, is started as a whole;
* ``compiled``: one per operator after fusion, at most as many as ``eager``;
* ``eager``: one per operator as captured. Views are not captured. What capture cuts one ATen
  operator into, to write one tensor (``cat``), is one kernel.

Seconds per launch are a range (``data/launches.toml``); the central ones count, and
`phaze_opt.evaluation.with_range` takes both ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from phaze_opt.choices import FusionMode, Launch
from phaze_opt.codec import data_table, from_builtins
from phaze_opt.hardware.ranges import RateRange
from phaze_opt.passes.graphs import fuse_once, graphs_of
from phaze_opt.training import Training
from phaze_opt.workload.graph import Layer, OperatorGraph


@dataclass(frozen=True)
class LaunchSeconds:
    """Seconds in which a host launches one kernel, with their range and source."""

    low_s: float
    central_s: float
    high_s: float
    source: str
    confidence: str


@lru_cache(maxsize=1)
def launch_seconds() -> LaunchSeconds:
    """Return what the data file states."""
    stated = data_table("passes", "launches.toml")["launch"]
    return from_builtins(stated, LaunchSeconds, "launches.toml")


def host_range(training: Training) -> RateRange | None:
    """Return how much slower and faster hosts launch, as factors; ``None`` where none does."""
    if training.launch == "graphs":
        return None
    each = launch_seconds()
    return RateRange(each.central_s / each.high_s, each.central_s / each.low_s)


def launches(captured: OperatorGraph, fusion: FusionMode, launch: Launch) -> int:
    """Count the kernels that the host launches one by one in a pass.

    Parameters
    ----------
    captured
        The operators, not fused.
    fusion
        How they are fused.
    launch
        See `phaze_opt.training.Training`.
    """
    if launch == "graphs":
        return 0
    eager = _kernels(captured) - _further_pieces(captured)
    return eager if launch == "eager" else min(eager, _kernels(fuse_once(captured, fusion)))


def host_s(
    layer: Layer, training: Training, fusion: FusionMode, host_rate: float = 1.0
) -> Mapping[str, float]:
    """Return for how long the host launches the kernels of each pass of a layer, by its name.

    Parameters
    ----------
    layer, training, fusion
        What runs.
    host_rate
        Rate of the host relative to the central one.
    """
    if training.launch == "graphs":
        return {}
    each_s = launch_seconds().central_s / host_rate
    return {
        name: each_s * launches(graph, fusion, training.launch)
        for name, graph in graphs_of(layer, training).items()
    }


@lru_cache(maxsize=1024)
def _kernels(graph: OperatorGraph) -> int:
    """Count the operators that do anything."""
    return sum(bool(each.gemms or each.vector or each.collective) for each in graph.operators)


@lru_cache(maxsize=1024)
def _further_pieces(captured: OperatorGraph) -> int:
    """Count the pieces beyond the first of operators that capture cuts to write one tensor."""
    return sum(max(len(tensor.writers) - 1, 0) for tensor in captured.tensors)
