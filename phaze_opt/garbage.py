"""Python's collector of reference cycles, out of the way of computations."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


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


class KeptSoFar(AbstractContextManager["KeptSoFar"]):
    """Lets the collector look only at what is made after some moment, until the block ends.

    The imports of a study leave half a million objects behind, which live for as long as the
    program. Among them the collector would look for cycles again and again: a tenth of the time.
    """

    def __init__(self) -> None:
        self._begun = self._froze = False

    def begin(self) -> None:
        """Say that the moment is now; later calls say nothing."""
        # What someone else has frozen stays so.
        if not self._begun and gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()
            self._froze = True
        self._begun = True

    def __exit__(self, *_: object) -> None:
        if self._froze:
            gc.unfreeze()
