"""Unit prefixes, and quantities as text. Inside the package every number is in SI units."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30

MM2_PER_UM2 = 1e-6
J_PER_PJ = 1e-12

_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BINARY_STEPS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def format_seconds(seconds: float) -> str:
    """Write a duration with four significant digits and a fitting prefix."""
    for scale, unit in _TIME_STEPS:
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return "0 s" if seconds == 0.0 else f"{seconds / 1e-9:.4g} ns"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun, which gets an ``s`` unless there is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(size_bytes: float) -> str:
    """Write a size with four significant digits and a binary prefix."""
    for scale, unit in _BINARY_STEPS:
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.4g} B"
