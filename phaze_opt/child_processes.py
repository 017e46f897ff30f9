"""What a process does that works for another one: it leaves signals to it, and ends with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import Any


def begin_in_process() -> None:
    """Ignore SIGINT, which the submitting process handles, and end when that process is gone.

    A terminal sends Ctrl-C to all processes of a command.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this process at once when its parent has ended, for any reason."""
    parent: Any = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
