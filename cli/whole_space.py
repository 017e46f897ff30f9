"""What the commands share that search a whole space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from .output import say

WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="W",
        help="Processes; default: one, or one per core if that is sooner.",
        show_default=False,
    ),
]


@contextmanager
def goes_on(command: str) -> Iterator[None]:
    """Say how a search of the space goes on after a signal."""
    from phaze_opt.whole_space.enumerating import StoppedError

    try:
        yield
    except StoppedError as stopped:
        say(f"Stopped; '{command}' goes on from here.")
        raise typer.Exit(stopped.exit_code) from None
