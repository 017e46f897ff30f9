"""The what-if page: one training run or two side by side, whose options are controls.

``/`` is the page, ``/ask/KIND/PAGE`` what its script asks for (PAGE tells open pages apart, the
query has the options), ``/phaze/…`` its scripts and styles. It reads no database and changes
nothing. What answers comes from the command line, which knows the options of a point.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phaze_opt.errors import ConflictError, PhazeError
from phaze_opt.report.answering import Answer, AnsweringProcess
from phaze_opt.report.guard import BAD_REQUEST, FORBIDDEN, path_of, refuse
from phaze_opt.report.page import page_json, problem_page
from phaze_opt.report.plots.of_evaluations import EVALUATION_PLOT_KINDS, EVALUATION_TITLES
from phaze_opt.report.server import (
    NOT_FOUND,
    OK,
    WRONG,
    PageServer,
    asset_response,
    html_response,
    json_response,
    listen,
)
from phaze_opt.report.templates import templates
from phaze_opt.report.words import axis_words

_ASSETS = "/phaze/"
_SCRIPTS = ("page.css", "explore.css", "explore.js", "figures.js", "plotly.js")
_ASK = re.compile(r"/ask/(numbers|range|reasons)/([0-9a-zA-Z-]{1,40})")
_CONFLICT = "409 Conflict"

_PATIENCE_S = 3.0
_LIMIT_S = 300.0


@dataclass(frozen=True)
class PageControl:
    """A control of the page.

    Attributes
    ----------
    name, label
        Of the option, as a link states it and as people read it.
    kind
        ``choice``, ``switch``, ``whole`` or other ``number``, ``text``, or a ``list`` of texts.
    help
        One sentence.
    choices
        Of a choice; of a text what it may be among others.
    default
        As text; empty where nothing is stated.
    often
        Whether it stands among the first, and not under further options.
    """

    name: str
    label: str
    kind: str
    help: str
    choices: tuple[str, ...]
    default: str
    often: bool


def make_explorer(
    controls: Sequence[PageControl],
    sizes: Mapping[str, float],
    answer: Answer,
    first: str,
    host: str,
    port: int,
) -> tuple[PageServer, ExplorePages]:
    """Return a server that listens already, and its pages, whose processes are to be closed.

    Parameters
    ----------
    controls
        Of the page, in their order.
    sizes
        Numbers of the first chip that have a control of their own, as
        `phaze_opt.report.point_view.size_values` gives them.
    answer
        Answers ``KIND?QUERY``; see `phaze_opt.report.answering.AnsweringProcess`.
    first
        Question that a new process answers for nobody; see the same.
    host, port
        As `phaze_opt.report.server.listen` takes them.

    Raises
    ------
    PhazeError
        If the address cannot be used.
    """
    pages = ExplorePages(controls, sizes, answer, first)
    server = listen(host, port, pages, "page", read_only=True)
    pages.start()
    return server, pages


class ExplorePages:
    """The application behind the guard.

    Numbers and ranges are answered in one process, reasons, which take seconds, in another one: a
    change of the page ends that, and asks anew.
    """

    def __init__(
        self,
        controls: Sequence[PageControl],
        sizes: Mapping[str, float],
        answer: Answer,
        first: str,
    ) -> None:
        self._page = _explore_page(controls, sizes)
        numbers = AnsweringProcess(
            answer, first, patience_s=_PATIENCE_S, limit_s=_LIMIT_S, spare=False
        )
        reasons = AnsweringProcess(answer, first, limit_s=_LIMIT_S)
        self._processes = {"numbers": numbers, "range": numbers, "reasons": reasons}

    def start(self) -> None:
        """Start the processes."""
        for process in {id(each): each for each in self._processes.values()}.values():
            process.start()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a request."""
        path = path_of(environ)
        if path == "/":
            return html_response(start_response, OK, self._page)
        if path.startswith(_ASSETS):
            return asset_response(start_response, path.removeprefix(_ASSETS), _SCRIPTS)
        asked = _ASK.fullmatch(path)
        if asked is None:
            sentence = problem_page("There is no such page.")
            return html_response(start_response, NOT_FOUND, sentence)
        # A page of another site cannot read the answer, but could keep this machine busy.
        if environ.get("HTTP_SEC_FETCH_SITE", "same-origin") not in ("same-origin", "none"):
            return refuse(start_response, FORBIDDEN, "Only pages of this server may ask.")
        return self._asked(asked[1], asked[2], str(environ.get("QUERY_STRING", "")), start_response)

    def _asked(
        self, kind: str, asker: str, query: str, start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a question."""
        try:
            proper, answer = self._processes[kind].ask(f"{kind}?{query}", asker)
        except PhazeError as error:
            status = _CONFLICT if isinstance(error, ConflictError) else WRONG
            return json_response(start_response, status, {"reason": str(error)})
        return json_response(start_response, OK if proper else BAD_REQUEST, answer)


def _explore_page(controls: Sequence[PageControl], sizes: Mapping[str, float]) -> str:
    """Return the page."""
    page = templates().get_template("explore.html")
    return page.render(
        controls=controls,
        sizes={name: axis_words(name) for name in sizes},
        plots={kind: EVALUATION_TITLES[kind] for kind in EVALUATION_PLOT_KINDS},
        state=page_json({"defaults": {control.name: control.default for control in controls}}),
    )
