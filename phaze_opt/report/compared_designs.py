"""The best design of a study beside others: the certified optimum, and the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phaze_opt.evaluation import Evaluation
from phaze_opt.report.certified import CertifiedAnswer
from phaze_opt.report.study_words import accelerator_words, training_words, value_words
from phaze_opt.spec.axes import Scalar
from phaze_opt.study.baselines import BaselineResult
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.summary import StudySummary


@dataclass(frozen=True)
class ComparedDesign:
    """One line of the comparison of the best design with others.

    Attributes
    ----------
    kind
        ``best`` of the trials, ``optimum`` of an enumeration, or ``baseline``.
    values, value
        By the objectives of the study, in words and the first as a number; ``None`` where the
        design trains the model under no option.
    ratio
        Of the best design's first value to this one's.
    area_mm2
        Under the area model of the study.
    chip
        Cores, memories and training options in words.
    note
        What else is to be known of it.
    evaluations
        By workload; empty where none is stored.
    """

    kind: str
    name: str
    values: str | None
    value: float | None
    ratio: float | None
    area_mm2: float | None
    chip: str
    note: str = ""
    evaluations: tuple[Evaluation | None, ...] = ()


def compared_designs(
    summary: StudySummary,
    baselines: Sequence[BaselineResult],
    certificate: CertifiedAnswer | None,
) -> list[ComparedDesign]:
    """Put the best design beside the certified optimum and the baselines."""
    best, designs = summary.best, []
    if best is not None:
        designs.append(
            _design_line("best", f"best of the trials (trial {best.number})", best, best)
        )
    if certificate is not None and certificate.optimum is not None:
        designs.append(_design_line("optimum", "certified optimum", certificate.optimum, best))
    for baseline in baselines:
        designs.append(_baseline_line(summary, baseline))
    return designs


def _design_line(
    kind: str, name: str, design: BestDesign, best: BestDesign | None
) -> ComparedDesign:
    """Describe a design that the search or an enumeration found."""
    return ComparedDesign(
        kind=kind,
        name=name,
        values=value_words(design.spec, design.metrics.values),
        value=design.metrics.value,
        ratio=None if best is None else best.metrics.value / design.metrics.value,
        area_mm2=design.metrics.area_mm2,
        chip=f"{accelerator_words(design.params)}; {training_words(design.params)}",
        note="no design of the space is better in this cost model" if kind == "optimum" else "",
        evaluations=design.evaluations,
    )


def _baseline_line(summary: StudySummary, baseline: BaselineResult) -> ComparedDesign:
    """Describe a baseline at its best."""
    spec, best = summary.resolved.spec, summary.best
    notes = [] if baseline.within_area else ["itself above the area limit"]
    outside = summary.outside.get(baseline.name)
    notes += [] if outside is None else [f"outside the space: {outside}"]
    runs = [run for run in baseline.runs if run is not None]
    chip = ""
    if runs:
        params: Mapping[str, Scalar] = runs[0].params
        chip = accelerator_words(params)
        chip += f"; {training_words(params)}" if len(baseline.runs) == 1 else ""
    known = baseline.values is not None
    return ComparedDesign(
        kind="baseline",
        name=baseline.name,
        values=value_words(spec, baseline.values) if baseline.values is not None else None,
        value=baseline.values[0] if baseline.values is not None else None,
        ratio=None if best is None else best.ratio(baseline),
        area_mm2=baseline.area_mm2,
        chip=chip,
        note="; ".join(notes if known else ["fits under no training option", *notes]),
        evaluations=tuple(None if run is None else run.evaluation for run in baseline.runs),
    )
