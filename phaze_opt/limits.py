"""The largest sizes that are accepted, for every edge of the program.

Larger numbers are typing errors: no machine has so many devices, and sums of their products would
leave 64 bits. Where a switch is the outermost level, whatever is inside, time and memory grow with
the square root of the global batch and hardly with the number of devices. On tori without a switch,
with ZeRO 2 and 3 and with interleaving they grow in proportion to the number of replicas that both
allow; with the number of layers they grow by its square. A chain of so many layers that this would
be too much, without ZeRO and interleaving, is split without tables of its stages
(`phaze_opt.placement.deep`), and grows in proportion. What else may take more memory than
`MOST_PLACEMENT_BYTES` is refused before any of it is taken (`phaze_opt.placement.size`).
"""

from __future__ import annotations

import sys
from fractions import Fraction

from phaze_opt.errors import InputError

MOST_DEVICES = 10**7
"""Devices of a cluster."""

MOST_SAMPLES = 10**9
"""Samples of a global batch."""

MOST_PLACEMENT_BYTES = 4 * 2**30
"""Memory of the tables with which layers are placed on devices."""

MOST_TRIALS = 10**7
"""Trials of a study."""

MOST_WORKERS = 1024
"""Processes on one machine."""

MOST_SIZE = 2**40
"""Edge of a product, elements of a vector operator, bytes of a buffer, and every other integer for
which no limit is named."""

MOST_WORK = 2**60
"""Multiply-accumulates of a product, or elements of a vector operator."""

MOST_TENSOR_BYTES = 2**50
"""Of a tensor that a collective sends: a thousand times the gradients of the largest models."""

MOST_FILE_BYTES = 16 * 2**20
"""A file that a person writes: TOML, or JSON of the same content."""

MOST_DATA_BYTES = 2**30
"""A file that a program writes: captured workloads, bundles, certificates, measurements."""


def check_size(name: str, value: int, most: int, least: int = 1) -> None:
    """Refuse an integer outside its limits.

    Parameters
    ----------
    name
        Of the number, for the error's sentence.
    value, most, least
        The number, and what is allowed.

    Raises
    ------
    InputError
        If it is too small or too large.
    """
    if value < least:
        raise InputError(f"{name} is {_shown(value)}, but it must be at least {least:,}.")
    if value > most:
        raise InputError(f"{name} is {_shown(value)}, but it may be at most {most:,}.")


def is_finite(value: float | Fraction) -> bool:
    """Whether a double can hold a number: no integer of 400 digits, no infinity."""
    return -sys.float_info.max <= value <= sys.float_info.max


def _shown(value: int) -> str:
    """Write a number, of which thousands of digits would help nobody."""
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
