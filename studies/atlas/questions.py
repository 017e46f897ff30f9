"""What the atlas asks: models, numbers of bits and of devices, and variants of the setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phaze_opt.spec.study_spec import StudySpec, read_spec
from studies.paper.settings import ENDLESS_GIB, changed

FOLDER = Path(__file__).parent
HBM_RATIO = 41.875
"""Gigabytes per second of the HBM for each of its GiB, in ``base.toml``."""
KNOWN_CHIPS = ("h100", "b200", "tpuv5p", "tpu7x", "mi300x")
"""They stand beside the winners, each at its best, whatever its area."""


@dataclass(frozen=True)
class Asked:
    """A model of the atlas.

    Attributes
    ----------
    fields, axes
        Of the study, and of its space, that are others than those of ``base.toml``.
    """

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model, with its tokens per sample where they are others than its own."""
        tokens = self.fields.get("sequence")
        return self.model if tokens is None else f"{self.model}-{tokens}"


_EXPERTS: Mapping[str, Any] = {"zero": 1, "expert_parallel": {"solve": [8, 16, 32, 64]}}
_DISPATCHED = {"dispatcher": "hybridep"}
_LONG = {"sequence": 131_072, "global_batch": 64}
MODELS = (
    Asked("llama3-8b"),
    Asked("llama3-70b"),
    Asked("gemma2-9b"),
    Asked("nemotron-h-8b"),
    Asked("qwen3-30b-a3b", {**_DISPATCHED, "global_batch": 2048}, _EXPERTS),
    Asked("gpt-oss-120b", {**_DISPATCHED, "global_batch": 2048}, _EXPERTS),
    Asked("deepseek-v3", {**_DISPATCHED, "global_batch": 2048}, _EXPERTS),
    Asked("llama3-8b", _LONG, {"context_parallel": {"solve": [4, 8, 16]}, "microbatch": 1}),
)
VARIED = ("llama3-8b", "llama3-70b", "qwen3-30b-a3b")
"""Models of which other numbers of devices, and variants, are asked too."""
_BITS: Mapping[str, Any] = {
    "precision": ["bf16", "mxfp8", "nvfp4"],
    "fp8_ratio": [2.0, 4.0],
    "fp4_ratio": [4.0, 8.0],
}
_DEVICES = (256, 4096, 16384)


@dataclass(frozen=True)
class Variant:
    """One thing that is otherwise than in ``base.toml``.

    Attributes
    ----------
    name, words
        Behind the name of a study, and for tables.
    fields, axes
        Of the study, and of its space.
    """

    name: str
    words: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)


BITS = Variant("bits", "eight and four bits searched", axes=_BITS)
VARIANTS = (
    Variant("one-wide", "no tensor parallelism", {"tensor_parallel": (1,)}),
    Variant("no-overlap", "nothing overlaps", {"overlap": "none"}),
    Variant("overlap-all", "transfers of tensor parallelism overlap too", {"overlap": "all"}),
    Variant("no-residency", "no tensor stays on the chip", {"residency": False}),
    Variant("eager", "attention with scores in memory", {"attention": "eager"}),
    Variant("split-backward", "split backward (zb-h1)", {"pipeline_schedule": "zb-h1"}),
    Variant(
        "fast-network",
        "twice the bandwidth between nodes",
        axes={"network.1.bandwidth_gb_per_s": 100.0},
    ),
)
"""Of three models."""


@dataclass(frozen=True)
class Question:
    """A space, of which the best design is to be proven.

    Attributes
    ----------
    part
        Of the page: ``models``, ``bits``, ``devices`` or ``variants``.
    words
        For its row.
    against
        The study that it is set against.
    """

    part: str
    words: str
    spec: StudySpec
    against: str = ""


def questions() -> Iterator[Question]:
    """Yield all that is asked, every question after the one that it is set against."""
    base = read_spec(FOLDER / "base.toml")
    for asked in MODELS:
        spec = changed(base, asked.name, asked.axes, model=asked.model, **asked.fields)
        yield Question("models", asked.name, spec)
        yield _varied("bits", asked.name, spec, BITS)
        if asked.name not in VARIED:
            continue
        for devices in _DEVICES:
            batch = spec.global_batch * devices // spec.devices
            fields = {"devices": devices, "global_batch": batch}
            words = f"{asked.name}, {devices:,} devices"
            yield _varied("devices", words, spec, Variant(f"on-{devices}", "", fields))
        for variant in VARIANTS:
            yield _varied("variants", f"{asked.name}, {variant.words}", spec, variant)


def _varied(part: str, words: str, spec: StudySpec, variant: Variant) -> Question:
    """Return the question of a variant of a study."""
    other = changed(spec, variant.name, variant.axes, **variant.fields)
    return Question(part, words, other, against=spec.name)


def alone(spec: StudySpec) -> StudySpec:
    """Return the study that searches the chip before anything is placed.

    One chip trains the whole model, and its memory holds it; only its layers take time.
    """
    axes = {
        "hbm_gib": ENDLESS_GIB,
        "hbm_gb_per_s": [HBM_RATIO * float(gib) for gib in spec.space.values_of("hbm_gib")],
        **{"recompute": "none", "zero": 0, "sequence_parallel": False},
    }
    if "expert_parallel" in spec.space.axes:
        axes["expert_parallel"] = 1
    return changed(spec, "alone", axes, devices=1, tensor_parallel=(1,))
