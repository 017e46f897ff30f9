"""What is asked: the studies of the paper's setting, of today's, and of their variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import AreaSpec, StudySpec, WorkloadSpec, read_spec

SPECS = Path(__file__).parents[1] / "phaze"
"""The study files of the paper's setting; the results lie beside them."""

MODELS = (
    "bert-large",
    "gpt2-xl",
    "opt-350m",
    "llama2-7b",
    "megatron-bert",
    "megatron-gpt2-2.5b",
    "megatron-gpt2-8.3b",
    "gpt3-175b",
)

BASELINES = ("tpuv4-phaze", "tpuv4-lanes", "tpuv4")
"""Known chips that are compared, the reference first."""

ENDLESS_GIB = 2**15
"""HBM of a chip that holds any of the models, with all that it stashes."""


@dataclass(frozen=True)
class Scope:
    """How much is asked: all of it, or a part that a test can wait for.

    Attributes
    ----------
    models
        Of the main comparison.
    ablated, robust, today, fronts, built
        Models of the ablations, of the robustness, of today's setting, of the fronts of throughput
        and area, and of the other area model.
    options
        How many of the ablations of the training options are asked for.
    axes
        Axes of the paper's space that have fewer values.
    run
        Fields of the studies that are others, such as the number of devices.
    """

    models: tuple[str, ...] = MODELS
    ablated: tuple[str, ...] = ("llama2-7b", "gpt3-175b")
    robust: tuple[str, ...] = MODELS
    today: tuple[str, ...] = MODELS
    fronts: tuple[str, ...] = ("bert-large", "llama2-7b", "gpt3-175b")
    built: tuple[str, ...] = MODELS
    options: int = 6
    axes: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


def changed(
    spec: StudySpec, suffix: str, axes: Mapping[str, Any] | None = None, **fields: Any
) -> StudySpec:
    """Return a study with other axes and other fields, named after the first one."""
    space = Space.from_plain({**spec.space.to_plain(), **(axes or {})})
    return replace(spec, name=f"{spec.name}-{suffix}", space=space, **fields)


def paper_study(scope: Scope, model: str) -> StudySpec:
    """Return the study of one model in the setting of the paper."""
    return _within(scope, read_spec(SPECS / f"{model}.toml"))


def common_study(scope: Scope) -> StudySpec:
    """Return the study of one chip for all models; what it is relative to moves no design."""
    spec = _within(scope, read_spec(SPECS / "common.toml"))
    return replace(spec, workloads=tuple(WorkloadSpec(model) for model in scope.models))


def _within(scope: Scope, spec: StudySpec) -> StudySpec:
    """Return a study as far as it is asked."""
    if not scope.axes and not scope.run:
        return spec
    plain = spec.space.to_plain()
    axes = {name: axis for name, axis in scope.axes.items() if not _is_solved(plain.get(name))}
    return replace(spec, space=Space.from_plain({**plain, **axes}), **scope.run)


def _is_solved(axis: object) -> bool:
    return isinstance(axis, Mapping) and "solve" in axis


def expert_study(spec: StudySpec) -> StudySpec:
    """Return the study that searches the chip under the expert placement."""
    return changed(spec, "expert", placement="expert")


def alone_study(spec: StudySpec) -> StudySpec:
    """Return the study that searches the chip alone, as Spotlight does: one chip runs all layers.

    Nothing is placed: there is one chip, no network, and memory enough for the whole model. So the
    time of a batch is that of the layers' forward and backward, of the gradients that add up, and
    of one optimizer step.
    """
    axes = {"hbm_gib": ENDLESS_GIB, "recompute": "none"}
    return changed(spec, "alone", axes, devices=1, tensor_parallel=(1,))


def built_area_study(spec: StudySpec) -> StudySpec:
    """Return the study under the area model that also charges for control, lanes, PHY and NoC."""
    return changed(spec, "chip-area", area=replace(spec.area, model="chip"))


TODAY_AXES: dict[str, Any] = {
    "base": "tpuv4-lanes",
    "preset": "phaze",
    "pe_vc": [128, 256, 1024],
    "hbm_gb_per_s": [800, 1200, 1600, 2000, 2400],
    "recompute": ["none", "selective", "full"],
}
"""The space of today's setting: that of the paper, with the HBM's bandwidth and longer vectors."""


def today_study(scope: Scope, model: str) -> StudySpec:
    """Return the study of one model in a setting of today.

    A torus, Adam in mixed precision, fused attention, tensors that stay on the chip, sequence
    parallelism, overlapped synchronisation of gradients, selective recompute; the area of a chip
    as it is built, with the bandwidth of the HBM to be paid for.
    """
    spec = StudySpec(
        name=f"today-{model}",
        model=model,
        cluster="tpuv4-torus",
        devices=1024,
        global_batch=4096,
        tensor_parallel="all",
        optimizer="adam",
        attention="flash",
        sequence_parallel=True,
        residency=True,
        overlap="data",
        baselines=("tpuv4-lanes",),
        space=Space.from_plain(TODAY_AXES),
        area=AreaSpec(model="chip", max_of="tpuv4-lanes", min_share=0.3),
    )
    return _within(scope, spec)
