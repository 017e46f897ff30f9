"""What tests look for in figures."""

from __future__ import annotations

from typing import Any


def trace_named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the trace of a name."""
    (trace,) = [candidate for candidate in figure["data"] if candidate["name"] == name]
    return dict(trace)
