"""Ctrl-C and SIGTERM: the first lets the running trial finish, the second gives it back at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopNow(BaseException):
    """The second signal; raised in the main thread, wherever it is."""


class StopSignals:
    """While entered, turns signals into a request that a loop looks at.

    Parameters
    ----------
    ignore_interrupt
        For worker processes: a terminal sends Ctrl-C to all processes, and only the first one
        shall act on it (it passes it on as SIGTERM).
    raise_on_repeat
        Whether the second signal raises `StopNow`.

    Attributes
    ----------
    received
        Number of the first signal, or ``None``.
    repeated
        Whether there was a second one.
    """

    def __init__(self, *, ignore_interrupt: bool = False, raise_on_repeat: bool = True) -> None:
        self.received: int | None = None
        self.repeated = False
        self._ignore_interrupt = ignore_interrupt
        self._raise_on_repeat = raise_on_repeat
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether to begin nothing new."""
        return self.received is not None

    @property
    def exit_code(self) -> int | None:
        """Exit code of a program ended by the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return None if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread only; elsewhere there is nothing to handle.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                ignored = self._ignore_interrupt and number == signal.SIGINT
                handler = signal.SIG_IGN if ignored else self._on_signal
                self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; act on the second."""
        if self.received is None:
            self.received = number
            return
        self.repeated = True
        if self._raise_on_repeat:
            raise StopNow
