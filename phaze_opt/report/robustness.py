"""Table of how far the best design depends on constants of the cost model."""

from __future__ import annotations

from rich.console import Group, RenderableType

from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.layout import add_row, fitted, pairs, sentence
from phaze_opt.report.study_words import value_words
from phaze_opt.report.words import share_words
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.variations import Factor
from phaze_opt.study.study import Study
from phaze_opt.whole_space.robustness import Robustness, VariedAnswer

_WORDS: dict[Factor, str] = {
    "lane_cycles": "lane cycles",
    "pe_area": "PE area",
    "hbm_efficiency": "HBM rate",
    "network_bandwidth": "network",
    "array_rate": "array rate",
}


def robustness_tables(study: Study, robustness: Robustness) -> RenderableType:
    """Show the winner, and the best design under every variation."""
    spec = study.resolved.spec
    of_all = f"{robustness.stays} of {len(robustness.variants)} variations"
    title = f"{study.name}: the winner stays in {of_all}"
    table = pairs()
    add_row(table, "winner", value_words(spec, robustness.winner.metrics.values))
    add_row(table, "cost model", f"version {robustness.version}")
    columns = SearchedColumns(spec)
    winner = columns.cells(DesignPoint(robustness.winner.point), robustness.winner.metrics)
    rows = [("nothing", "", *winner)]
    for answer in robustness.variants:
        varied = f"{_WORDS[answer.variation.factor]} {answer.applied - 1.0:+.0%}"
        if answer.best is None:
            rows.append((varied, "none fits", *["–"] * len(columns.headers)))
            continue
        cells = columns.cells(DesignPoint(answer.best.point), answer.best.metrics)
        rows.append((varied, _loss_words(answer), *cells))
    variants = fitted(("varied", ">loss", *columns.headers), rows)
    note = (
        "Every row is the best design with one constant varied; the loss is by how much the "
        "winner of the study is below it there, and 'out' if it is not feasible."
    )
    return Group(sentence(title, style="bold"), table, sentence(""), variants, sentence(note))


def _loss_words(answer: VariedAnswer) -> str:
    """Say how the winner does under a variation."""
    if answer.winner_stays:
        return "stays"
    return "out" if answer.loss is None else share_words(max(0.0, answer.loss))
