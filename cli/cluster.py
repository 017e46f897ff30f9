"""``phaze-opt cluster``: the networks and their numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import JsonOption, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Look at clusters.")


@app.command("ls")
def list_all(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: phaze-opt cluster ls
    """
    from phaze_opt.hardware.cluster import cluster_presets

    rows = [
        {
            "name": name,
            "levels": " / ".join(
                f"{level.topology} {'×'.join(map(str, level.axes)) or level.group_size or 'any'}"
                for level in cluster.levels
            ),
            "gb_per_s": " / ".join(
                f"{level.sustained_bytes_per_s / 1e9:.4g}" for level in cluster.levels
            ),
            "latency_us": " / ".join(f"{level.latency_s * 1e6:.3g}" for level in cluster.levels),
        }
        for name, cluster in cluster_presets().items()
    ]
    if as_json:
        print_json(rows)
        return
    from phaze_opt.report.tables import rows_table

    print_table(rows_table(rows))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Preset or TOML file.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show every level of a cluster and where the numbers come from.

    Example: phaze-opt cluster show dgx-a100
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.hardware.cluster import find_cluster

    cluster = find_cluster(name)
    levels = [
        {**to_builtins(level), "sustained_bytes_per_s": level.sustained_bytes_per_s}
        for level in cluster.levels
    ]
    if as_json:
        print_json({"name": cluster.name, "source": cluster.source, "levels": levels})
        return
    from phaze_opt.report.tables import rows_table

    print_table(rows_table(levels))
    print(cluster.source)
