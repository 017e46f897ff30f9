"""Pages from the templates in ``data``; Jinja escapes every text."""

from __future__ import annotations

import functools
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from phaze_opt.printing import printable
from phaze_opt.report.study_words import ORDER_WORDS


def asset(name: str) -> bytes:
    """Return a style sheet or script of the page."""
    return resources.files("phaze_opt.report").joinpath("data", name).read_bytes()


def _harmless(value: object) -> object:
    """Replace control characters in text, line ends aside; Jinja escapes the rest."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


@functools.cache
def templates() -> Environment:
    """Return Jinja with the templates of this room."""
    environment = Environment(
        loader=FunctionLoader(lambda name: asset(name).decode()),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["order"] = ORDER_WORDS
    return environment
