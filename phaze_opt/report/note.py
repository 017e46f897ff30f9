"""The note of a study in the dashboard: the answer in words, as Markdown."""

from __future__ import annotations

import html
import importlib

from phaze_opt.errors import printable
from phaze_opt.evaluation import evaluation_to_json_dict
from phaze_opt.report.words import (
    accelerator_words,
    binding_words,
    effort_words,
    placement_words,
    proof_words,
    ratio_words,
    share_words,
    time_words,
    training_words,
    trial_words,
)
from phaze_opt.search.results import StudySummary
from phaze_opt.search.store.failures import database_errors, patiently
from phaze_opt.search.study import Study

_MARKUP = frozenset("\\`*_[]#!|~$")


def note_of(summary: StudySummary) -> str:
    """Write the answer of a study as Markdown."""
    spec = summary.resolved.spec
    lines = [
        f"# {plain(summary.name)}",
        f"Which accelerator trains **{plain(spec.model)}** fastest on {spec.devices} devices "
        f"({plain(spec.cluster)}, global batch {spec.global_batch}, {spec.optimizer}) within "
        f"{summary.resolved.area_limit_mm2:.4g} mm²?",
        "",
    ]
    best = summary.best
    if best is None:
        lines.append("Nothing feasible was found yet.")
    else:
        record = {} if best.evaluation is None else evaluation_to_json_dict(best.evaluation)
        share = best.metrics.area_mm2 / summary.resolved.area_limit_mm2
        lines += [
            f"**{best.metrics.throughput_samples_per_s:,.0f} samples/s** (trial {best.number}): "
            f"{accelerator_words(best.point)}; {training_words(best.point)}.",
            "",
            *(f"- {plain(line)}" for line in ratio_words(best)),
            f"- placement: {placement_words(record.get('placement'))}",
            f"- area used: {share:.1%}",
            f"- bound by: {plain(binding_words(record))}",
            f"- time of a batch: {plain(time_words(record))}",
        ]
    lines += [
        "",
        f"{trial_words(summary)}; {effort_words(summary)}; "
        f"{share_words(summary.cached_share)} cached; proven optimal: {proof_words(summary)}.",
        "",
        "The area is a relative budget (no network, PHY or control), not a die size.",
    ]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Make text from a file or a database plain text in Markdown: no markup, no links, no lines."""
    marked = "".join(f"\\{letter}" if letter in _MARKUP else letter for letter in printable(text))
    return html.escape(marked, quote=False)


def save_note(study: Study) -> None:
    """Write the answer into the study's note, where it changed."""
    # Imported here: it brings a web server along.
    dashboard = importlib.import_module("optuna_dashboard")

    def save() -> None:
        body = note_of(study.summary())
        with database_errors(study.storage.shown):
            if dashboard.get_note(study.optuna_study) != body:
                dashboard.save_note(study.optuna_study, body)

    patiently(save)
