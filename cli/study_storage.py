"""The database of the study commands: which one it is, and the studies in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .output import say

if TYPE_CHECKING:
    from phaze_opt.store.storage import Storage
    from phaze_opt.study.study import Study

NameArgument = Annotated[str, typer.Argument(help="Name of the study.", show_default=False)]


def open_database(storage: str | None, *, create: bool = False) -> Storage:
    """Open the storage, and say which."""
    from phaze_opt.store.opening import open_storage

    return open_storage(say_storage(storage), create=create)


def say_storage(storage: str | None) -> str:
    """Say which storage is used, and return its URL."""
    from phaze_opt.store.opening import resolve_url, shown_url

    url = resolve_url(storage)
    say(f"storage {shown_url(url)}")
    return url


def open_study(name: str, storage: str | None) -> Study:
    """Open a study by name."""
    from phaze_opt.study.study import load_study

    return load_study(name, open_database(storage))
