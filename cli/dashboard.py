"""``phaze-opt dashboard``: look at studies in a browser, live."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import StorageOption, say
from .study_storage import open_database


def dashboard(
    name: Annotated[
        str | None, typer.Argument(help="Study whose page is opened; all where left out.")
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
    """Show studies in a browser, while they run and afterwards, until Ctrl-C.

    The page of a study shows the answer in words, plots and trials, and keeps itself up to date;
    Optuna Dashboard is one link away.

    For example:

        phaze-opt dashboard quickstart

        phaze-opt dashboard --port 9000 --read-only
    """
    from phaze_opt.report.dashboard import address_of, make_server
    from phaze_opt.report.guard import is_local
    from phaze_opt.study.study import load_study

    opened = open_database(storage)
    if name is not None:
        load_study(name, opened)
    server = make_server(opened, host, port, read_only=read_only, first=name)
    if not is_local(host):
        say(
            f"warning: whoever reaches {host} sees the studies"
            f"{'' if read_only else ' and may change and delete them'}, without a login. Safer is "
            f"the default host, seen from elsewhere through 'ssh -L {server.server_port}:localhost:"
            f"{server.server_port} THIS-MACHINE'."
        )
    say(f"dashboard {address_of(server, name)} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
