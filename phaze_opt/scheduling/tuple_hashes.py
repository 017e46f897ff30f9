"""Python's hashes of numbers and tuples, for compiled code.

The canonical order of a problem is one of hashes, and schedules with their keys are stored by it:
compiled code must hash as Python does (``Objects/tupleobject.c`` and ``Python/pyhash.c`` of CPython
3.8 and later, with 64 bits).
"""

from __future__ import annotations

import math

from phaze_opt.arrays import IntArray
from phaze_opt.compiled import inlined

_MODULUS = 2**61 - 1
"""Numbers are hashed by their remainder."""

_FLOAT_BITS = 28
"""Bits of a floating-point number that are read at once."""


def _signed(word: int) -> int:
    """Write an unsigned word of 64 bits as a signed one."""
    return word - 2**64 if word >= 2**63 else word


_LANE = _signed(14029467366897019727)
_ROUND = _signed(11400714785074694791)
EMPTY = 2870177450012600261
"""The state of a tuple's hash before its first entry."""
_LENGTH = EMPTY ^ 3527539


@inlined
def add_entry(state: int, entry: int) -> int:
    """Return the state of a tuple's hash after one more entry, of which the hash is given."""
    state += entry * _LANE
    state = (state << 31) | ((state >> 33) & (2**31 - 1))
    return state * _ROUND


@inlined
def end_tuple(state: int, length: int) -> int:
    """Return the hash of a tuple of so many entries."""
    state += length ^ _LENGTH
    return 1546275796 if state == -1 else state


@inlined
def hash_integer(value: int) -> int:
    """Return the hash of a signed integer of 64 bits."""
    if value >= 0:
        return value % _MODULUS
    found = -((-(value + 1) % _MODULUS + 1) % _MODULUS)
    return -2 if found == -1 else found


@inlined
def hash_float(value: float) -> int:
    """Return the hash of a finite floating-point number that is not negative."""
    rest, exponent = math.frexp(value)
    found = 0
    while rest != 0.0:
        found = ((found << _FLOAT_BITS) & _MODULUS) | (found >> (61 - _FLOAT_BITS))
        rest *= 2.0**_FLOAT_BITS
        exponent -= _FLOAT_BITS
        digits = int(rest)
        rest -= digits
        found += digits
        if found >= _MODULUS:
            found -= _MODULUS
    exponent = exponent % 61
    return ((found << exponent) & _MODULUS) | (found >> (61 - exponent))


@inlined
def sort_first(values: IntArray, count: int) -> None:
    """Sort the first values of an array, which are few."""
    for end in range(1, count):
        value, place = values[end], end
        while place > 0 and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value
