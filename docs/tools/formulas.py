"""Formulas: fences of LaTeX, in pages as in GitHub's, become MathML, which browsers draw alone."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """Return a fence ``math`` as MathML; the signature is that of pymdownx.superfences."""
    formulas = [line for line in source.split("\n\n") if line.strip()]
    drawn = "\n".join(convert(formula.strip(), display="block") for formula in formulas)
    return f'<div class="formula">\n{drawn}\n</div>'
