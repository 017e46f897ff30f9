"""What tests look for in figures."""

from __future__ import annotations

from typing import Any


def trace_named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the trace of a name."""
    (trace,) = [one for one in figure["data"] if one["name"] == name]
    return dict(trace)
