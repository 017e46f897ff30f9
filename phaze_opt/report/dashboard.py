"""The dashboard of studies: Optuna Dashboard on a storage, local and guarded, with their notes.

The note of a study is its answer in words, as Markdown.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.simple_server import make_server as make_wsgi_server

from phaze_opt.errors import PhazeError
from phaze_opt.printing import printable
from phaze_opt.report.studies import (
    accelerator_words,
    effort_words,
    objective_words,
    proof_words,
    ratio_words,
    training_words,
    trial_words,
    value_words,
)
from phaze_opt.report.words import (
    binding_words,
    microbatch_words,
    pass_proof_words,
    placement_words,
    share_words,
    time_words,
)
from phaze_opt.search.results import BestDesign, StudySummary
from phaze_opt.search.spec import StudySpec
from phaze_opt.search.store.failures import database_errors, patiently
from phaze_opt.search.store.storage import Storage
from phaze_opt.search.study import Study

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_MARKUP = frozenset("\\`*_[]#!|~$")
_READING = ("GET", "HEAD", "OPTIONS")
_FORBIDDEN = "403 Forbidden"


class _Server(ThreadingMixIn, WSGIServer):
    """Answers several requests at once, and does not wait for open ones at the end."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Writes no line per request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def make_server(storage: Storage, host: str, port: int, *, read_only: bool = False) -> WSGIServer:
    """Return a server that listens already; ``serve_forever`` answers.

    Parameters
    ----------
    port
        0 for any free one.
    read_only
        Refuse every request that may change something.

    Raises
    ------
    PhazeError
        If the address cannot be used.
    """
    application: WsgiApplication = importlib.import_module("optuna_dashboard").wsgi(storage.optuna)
    application = guarded(application, host, read_only=read_only)
    try:
        return make_wsgi_server(
            host, port, application, server_class=_Server, handler_class=_QuietHandler
        )
    except OSError as error:
        raise PhazeError(
            f"The dashboard cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --port."
        ) from None


def guarded(application: WsgiApplication, host: str, *, read_only: bool) -> WsgiApplication:
    """Refuse foreign host names and, if asked, changes; the dashboard itself refuses neither.

    It has no login. A page of another site could make a browser talk to it under a name of its own
    (DNS rebinding); on a local address only local names are therefore answered.
    """
    local = ("localhost", "127.0.0.1", "[::1]", "::1")

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked = str(environ.get("HTTP_HOST", "")).rsplit(":", 1)[0]
        if host in local and asked not in (*local, ""):
            return _refuse(start_response, "This dashboard answers only under a local name.")
        if read_only and environ["REQUEST_METHOD"] not in _READING:
            return _refuse(start_response, "This dashboard is read-only.")
        return application(environ, start_response)

    return answer


def _refuse(start_response: Callable[..., Any], reason: str) -> Iterable[bytes]:
    """Answer that a request is not allowed, in the form that the dashboard shows."""
    start_response(_FORBIDDEN, [("Content-Type", "application/json")])
    return [f'{{"reason": "{reason}"}}'.encode()]


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


def note_of(summary: StudySummary) -> str:
    """Write the answer of a study as Markdown."""
    spec, limit_mm2 = summary.resolved.spec, summary.resolved.area_limit_mm2
    answer = ["Nothing feasible was found yet."]
    if summary.best is not None:
        answer = _answer_lines(summary.best, limit_mm2)
    lines = [
        f"# {plain(summary.name)}",
        f"{_question(spec)} on {spec.devices} devices "
        f"({plain(spec.cluster)}, global batch {spec.global_batch}, {spec.optimizer}) within "
        f"{limit_mm2:.4g} mm²?",
        "",
        *answer,
        "",
        f"{trial_words(summary)}; {effort_words(summary)}; "
        f"{share_words(summary.cached_share)} cached; proven optimal: {proof_words(summary)}.",
        "",
        "The area is a relative budget (no network, PHY or control), not a die size.",
    ]
    return "\n".join(lines)


def _question(spec: StudySpec) -> str:
    """Begin the question that a study asks."""
    if spec.objectives == ("throughput",) and len(spec.runs) == 1:
        return f"Which accelerator trains **{plain(spec.models)}** fastest"
    return (
        f"Which accelerator has the {plain(objective_words(spec))}, training "
        f"**{plain(spec.models)}**"
    )


def _answer_lines(best: BestDesign, limit_mm2: float) -> list[str]:
    """Write the best design of a study, one line per fact."""
    lines = [
        f"**{plain(value_words(best.spec, best.metrics.values))}** (trial {best.number}): "
        f"{plain(accelerator_words(best.params))}; {plain(training_words(best.params))}.",
        "",
        *(f"- {plain(line)}" for line in ratio_words(best)),
        f"- area used: {(best.metrics.area_mm2 or 0.0) / limit_mm2:.1%}",
    ]
    evaluation = best.evaluation if len(best.evaluations) == 1 else None
    if evaluation is None or evaluation.placement is None:
        return lines
    placement = evaluation.placement
    return [
        *lines,
        f"- placement: {placement_words(placement)}, microbatches {microbatch_words(placement)}",
        f"- bound by: {plain(binding_words(evaluation))}",
        f"- time of a batch: {plain(time_words(evaluation))}",
        *(f"- its passes: {pass_proof_words(proofs)}" for proofs in best.pass_proofs if proofs),
    ]


def plain(text: str) -> str:
    """Make text from a file or a database plain text in Markdown: no markup, no links, no lines."""
    marked = "".join(f"\\{letter}" if letter in _MARKUP else letter for letter in printable(text))
    return html.escape(marked, quote=False)
