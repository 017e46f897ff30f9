"""Python's collector of reference cycles, out of the way of short computations."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Let the collector wait until some work is done, if it runs at all.

    An evaluation makes thousands of objects that live on for as long as it does, and no cycle. The
    collector would look for some again and again, among all that the program holds: a fifth of the
    time. What is no longer used is freed as ever.
    """
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            gc.enable()
