"""What the atlas asks: models, budgets, numbers of bits and of devices, variants of the setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phaze_opt.economics.choices import Economics
from phaze_opt.spec.study_spec import AreaSpec, ConstraintSpec, StudySpec, WorkloadSpec, read_spec
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
_LARGEST = AreaSpec(max_mm2=2000.0, model="chip")
"""Of chips that a budget limits: about what a B200 has."""
_PAID = Economics(margin=7.0)
"""H100: 22,000 USD for 3,170 to make it."""


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
PAID_BITS = Variant(
    "bits",
    "in eight or four bits",
    axes={"precision": ["mxfp8", "nvfp4"], "fp8_ratio": 2.0, "fp4_ratio": 4.0},
)
"""Of chips that a budget limits: multipliers as tensor cores of 2024 have them."""
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


BUDGETS = (
    Variant(
        "dollars",
        "for what 1,024 H100 cost",
        {
            "area": _LARGEST,
            "economics": _PAID,
            "constraints": ConstraintSpec(max_cost_usd=43e6),
        },
        {"devices": [256, 512, 1024, 2048]},
    ),
    Variant(
        "watts",
        "with the watts of 1,024 H100",
        {
            "area": _LARGEST,
            "economics": _PAID,
            "constraints": ConstraintSpec(max_power_w_rack=32e3),
        },
    ),
)
"""Instead of the area of an H100; ``base.toml`` has 32 devices in a rack."""
LINKS = Variant(
    "links", "PHYs of links take area", {"area": AreaSpec("h100", model="chip", links=True)}
)
NETWORK = Variant(
    "network",
    "chip and network together",
    axes={
        "network.0.group_size": [8, 64],
        "network.0.links": [6, 12, 18],
        "network.0.bandwidth_gb_per_s": "25 * network.0.links",
        "network.1.bandwidth_gb_per_s": [25.0, 50.0, 100.0],
    },
)
_DEGREES = ("expert_parallel", "context_parallel")
_COMMON = {
    "microbatch": {"solve": [1, 2]},
    "recompute": {"solve": ["none", "full"]},
    "sequence_parallel": True,
}


@dataclass(frozen=True)
class Question:
    """A space, of which the best design is to be proven.

    Attributes
    ----------
    part
        Of the page: ``models``, ``bits``, ``dollars``, ``watts``, ``network``, ``devices`` or
        ``variants``.
    words
        For its row.
    against
        The study that it is set against.
    beside, chip_first
        Whether known chips stand beside it, and whether the chip is searched alone too, and placed
        afterwards.
    believed
        Whether its winner is set against what was built and measured.
    examined
        Whether random designs that were left out are evaluated.
    """

    part: str
    words: str
    spec: StudySpec
    against: str = ""
    beside: bool = False
    chip_first: bool = False
    believed: bool = False
    examined: bool = False


def questions() -> Iterator[Question]:
    """Yield all that is asked, every question after the one that it is set against."""
    base = read_base()
    for asked in MODELS:
        spec = changed(base, asked.name, asked.axes, model=asked.model, **asked.fields)
        varied = asked.name in VARIED
        first = Question("models", asked.name, spec, beside=True, chip_first=True)
        yield replace(first, believed=True, examined=varied)
        yield replace(_varied("bits", asked.name, spec, BITS), believed=True)
        for budget in BUDGETS:
            paid = replace(_varied(budget.name, asked.name, spec, budget), believed=True)
            yield replace(paid, beside=True)
            narrow = _varied(budget.name, f"{asked.name}, {PAID_BITS.words}", paid.spec, PAID_BITS)
            yield replace(narrow, believed=True)
        if varied:
            yield from _of_varied(asked.name, spec)


def read_base() -> StudySpec:
    """Read the study that the questions change."""
    return read_spec(FOLDER / "base.toml")


def _of_varied(name: str, spec: StudySpec) -> Iterator[Question]:
    """Yield what is asked of some models only."""
    links = _varied("network", f"{name}, {LINKS.words}", spec, LINKS)
    yield links
    yield _varied("network", f"{name}, {NETWORK.words}", links.spec, NETWORK)
    for devices in _DEVICES:
        batch = spec.global_batch * devices // spec.devices
        fields = {"devices": devices, "global_batch": batch}
        words = f"{name}, {devices:,} devices"
        more = _varied("devices", words, spec, Variant(f"on-{devices}", "", fields))
        yield replace(more, chip_first=True)
    for variant in VARIANTS:
        other = _varied("variants", f"{name}, {variant.words}", spec, variant)
        yield replace(other, chip_first=True)


def _varied(part: str, words: str, spec: StudySpec, variant: Variant) -> Question:
    """Return the question of a variant of a study."""
    other = changed(spec, variant.name, variant.axes, **variant.fields)
    return Question(part, words, other, against=spec.name)


def common_studies(base: StudySpec) -> Iterator[StudySpec]:
    """Yield the studies of one chip for all dense models, and for all with experts.

    At the models' own length. Each model has its own options; fewer than where it is alone, to be
    found in minutes.
    """
    models = [asked for asked in MODELS if "sequence" not in asked.fields]
    fields = {"model": None, "baselines": ("h100",), "relative_to": "h100", **_DISPATCHED}
    for name, experts in (("common-dense", False), ("common-experts", True)):
        workloads = tuple(
            WorkloadSpec(asked.model, global_batch=asked.fields.get("global_batch"))
            for asked in models
            if ("expert_parallel" in asked.axes) == experts
        )
        degrees = {"expert_parallel": {"solve": [16, 64]}} if experts else {}
        if workloads:
            yield changed(base, name, {**_COMMON, **degrees}, workloads=workloads, **fields)


def alone(spec: StudySpec) -> StudySpec:
    """Return the study that searches the chip before anything is placed.

    One chip trains the whole model, and its memory holds it; only its layers take time.
    """
    axes = {
        "hbm_gib": ENDLESS_GIB,
        "hbm_gb_per_s": [HBM_RATIO * float(gib) for gib in spec.space.values_of("hbm_gib")],
        **{"recompute": "none", "zero": 0, "sequence_parallel": False},
    }
    axes |= {degree: 1 for degree in _DEGREES if degree in spec.space.axes}
    return changed(spec, "alone", axes, devices=1, tensor_parallel=(1,))
