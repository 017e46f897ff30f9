"""A study as Markdown: its note in Optuna Dashboard, and the report for a repository or a wiki."""

from __future__ import annotations

import html
from collections.abc import Sequence

from phaze_opt.printing import printable
from phaze_opt.report.compared_designs import ComparedDesign
from phaze_opt.report.study_view import Fact, StudyView
from phaze_opt.report.study_words import IMPORTANCE_WORDS, step_label, step_words

COMMANDS_TITLE = "## How to get it again"

_MARKUP = frozenset("\\`*_[]#!|~$")
_MOST_TRIALS = 20


def note_of(view: StudyView) -> str:
    """Write the answer of a study, for its note."""
    lines = [
        f"# {plain(view.name)}",
        plain(view.question),
        "",
        *_answer_lines(view),
        "",
        *(
            f"- {plain(_compared_words(design))}"
            for design in view.compared
            if design.kind != "best"
        ),
        "",
        *_fact_lines("What binds", view.binding),
        *_step_lines(view),
        *_fact_lines("How it was found", view.effort),
        *_proof_lines(view),
        *_command_lines(view),
    ]
    return "\n".join(lines)


def report_markdown(view: StudyView) -> str:
    """Write a study with its comparison, certificate and best trials."""
    compared = [
        (
            design.name,
            design.values or "–",
            "–" if design.ratio is None else f"{design.ratio:.3f} ×",
            "–" if design.area_mm2 is None else f"{design.area_mm2:,.1f}",
            design.chip + (f" ({design.note})" if design.note else ""),
        )
        for design in view.compared
    ]
    headers = ("compared with", "value", "best ÷ this", "area [mm²]", "design")
    trials = [
        (str(trial.number), trial.state, *trial.cells)
        for trial in view.trials
        if trial.kind == "feasible"
    ]
    lines = [
        f"# {plain(view.name)} ({plain(view.state)})",
        "",
        plain(view.question),
        "",
        *_answer_lines(view),
        "",
        *(_table(headers, compared) if compared else []),
        *_fact_lines("What binds the best design", view.binding),
        *_step_lines(view),
        *_fact_lines("How it was found", view.effort),
        *_certificate_lines(view),
        *_command_lines(view),
        *_code("The study file:", view.file.rstrip("\n").split("\n")),
        "## The best designs",
        "",
        *_table(("trial", "state", *view.headers), trials[:_MOST_TRIALS]),
    ]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Make text from a file or a database plain text in Markdown: no markup, no links, no lines."""
    marked = "".join(f"\\{letter}" if letter in _MARKUP else letter for letter in printable(text))
    return html.escape(marked, quote=False)


def _answer_lines(view: StudyView) -> list[str]:
    """Write the best design."""
    best = view.best
    if best is None:
        return ["Nothing feasible was found yet."]
    design = "; ".join(map(plain, view.answer))
    return [f"**{plain(view.headline)}** (trial {best.number}): {design}."]


def _compared_words(design: ComparedDesign) -> str:
    """Compare the best design with another one, in a sentence."""
    if design.values is None or design.ratio is None:
        return f"{design.name} {design.note or 'is not evaluated yet'}"
    note = f"; {design.note}" if design.note else ""
    return f"{design.ratio:.3f} × {design.name} ({design.values}{note}): {design.chip}"


def _fact_lines(title: str, facts: Sequence[Fact]) -> list[str]:
    """Write facts as a list below a title."""
    if not facts:
        return []
    rows = [f"- {plain(fact.name)}: {plain(fact.text)}" for fact in facts]
    return [f"## {title}", "", *rows, ""]


def _step_lines(view: StudyView) -> list[str]:
    """Write what one step from the best design brings on each axis."""
    best = view.best
    if best is None or not view.steps:
        return []
    facts = [
        Fact(step_label(best, step), step_words(best, step))
        for step in view.steps
        if step.value is not None
    ]
    return [*_fact_lines("What one step from the best design brings", facts), IMPORTANCE_WORDS, ""]


def _proof_lines(view: StudyView) -> list[str]:
    """Write what an enumeration proved, and how to check it."""
    certificate = view.certificate
    if certificate is None:
        return []
    return [
        "## CertifiedAnswer",
        "",
        plain(certificate.words),
        "",
        *_code(f"{certificate.checked_by}:", certificate.commands),
    ]


def _certificate_lines(view: StudyView) -> list[str]:
    """Write what an enumeration proved, how to check it, and the proven order."""
    top = () if view.certificate is None else view.certificate.top
    headers = () if view.certificate is None else view.certificate.headers
    rows = [(str(place), *row) for place, row in enumerate(top, start=1)]
    return [*_proof_lines(view), *(_table(("place", *headers), rows) if rows else [])]


def _command_lines(view: StudyView) -> list[str]:
    """Write the commands that give the answer again."""
    lines = [line for command in view.commands for line in command.split("\n")]
    return [COMMANDS_TITLE, "", *_code("", lines)]


def _code(title: str, lines: Sequence[str]) -> list[str]:
    """Write lines as they are: an indented block, which no text in it can end."""
    head = [title, ""] if title else []
    return [*head, *(f"    {printable(line)}" for line in lines), ""]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table."""
    lines = [headers, ["---"] * len(headers), *rows]
    cells = [
        " | ".join(line if place == 1 else list(map(plain, line)))
        for place, line in enumerate(lines)
    ]
    return [*(f"| {line} |" for line in cells), ""]
