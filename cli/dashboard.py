"""``phaze-opt dashboard``: look at studies in a browser, live."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import StorageOption, say


def dashboard(
    name: Annotated[
        str | None, typer.Argument(help="Study whose note is brought up to date first.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; there is no login, so keep it local.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8080,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse every change from the browser.")
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Serve the studies of a database to a browser until Ctrl-C.

    For example:

        phaze-opt dashboard quickstart

        phaze-opt dashboard --port 9000 --read-only
    """
    from phaze_opt.report.dashboard import make_server, save_note
    from phaze_opt.search.store.storage import open_storage
    from phaze_opt.search.study import load_study

    opened = open_storage(storage)
    say(f"storage {opened.shown}")
    if name is not None:
        save_note(load_study(name, opened))
    server = make_server(opened, host, port, read_only=read_only)
    say(f"dashboard http://{host}:{server.server_port}/dashboard/ (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
