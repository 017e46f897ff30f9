"""Unit prefixes, and quantities as text. Inside the package every number is in SI units."""

from __future__ import annotations

from decimal import Decimal

KIB = 2**10
MIB = 2**20
GIB = 2**30

MM2_PER_UM2 = 1e-6
J_PER_PJ = 1e-12

_SHORTEST_S = 1e-12
"""Shorter times are rounding errors of longer ones."""

_COUNT_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BINARY_STEPS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def format_seconds(seconds: float) -> str:
    """Write a duration with four significant digits and a fitting prefix, never as a power."""
    if abs(seconds) >= 1000.0:
        return f"{seconds:,.0f} s"
    for scale, unit in _TIME_STEPS:
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return "0 s" if abs(seconds) < _SHORTEST_S else f"{seconds / 1e-9:.4g} ns"


def format_number(number: float) -> str:
    """Write a number with four significant digits, a large one whole, never as a power."""
    if abs(number) >= 1000.0:
        return f"{number:,.0f}"
    return f"{Decimal(f'{number:.4g}'):,f}"


def format_count(number: float, unit: str) -> str:
    """Write a large number with four significant digits and a decimal prefix of its unit."""
    for scale, prefix in _COUNT_STEPS:
        if abs(number) >= scale:
            return f"{number / scale:,.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}"


def counted(number: int, noun: str, several: str = "") -> str:
    """Write a number with its noun; ``several`` is its plural where that is not one with ``s``."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def format_bytes(size_bytes: float) -> str:
    """Write a size with four significant digits and a binary prefix."""
    for scale, unit in _BINARY_STEPS:
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.4g} B"
