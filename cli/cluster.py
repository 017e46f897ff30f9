"""``phaze-opt cluster``: the networks and their numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .estimate import CollectiveOptions
from .output import (
    ForceOption,
    JsonOption,
    PresetArgument,
    print_json,
    print_rows,
    print_table,
    takes,
    write_new_file,
)

if TYPE_CHECKING:
    from phaze_opt.network.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Look at clusters, and write one's own.")


@app.command("ls")
def list_all(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: phaze-opt cluster ls
    """
    from phaze_opt.network.presets import cluster_presets

    clusters = cluster_presets()
    if as_json:
        print_json([_summary(name, cluster) for name, cluster in clusters.items()])
        return
    rows = [
        {
            "name": name,
            "levels": " / ".join(
                f"{level.topology} {'×'.join(map(str, level.axes)) or level.group_size or 'any'}"
                for level in cluster.levels
            ),
            "GB/s": " / ".join(
                f"{level.sustained_bytes_per_s / 1e9:.4g}" for level in cluster.levels
            ),
            "latency, µs": " / ".join(f"{level.latency_s * 1e6:.3g}" for level in cluster.levels),
        }
        for name, cluster in clusters.items()
    ]
    print_rows(rows, as_json)


@app.command()
def show(name: PresetArgument, as_json: JsonOption = False) -> None:
    """Show every level of a cluster, which ranks it joins, and where the numbers come from.

    The JSON, written as a file, is the same cluster.

    Example: phaze-opt cluster show dgx-a100
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.network.presets import find_cluster

    cluster = find_cluster(name)
    if as_json:
        levels = [
            {**to_builtins(level), "sustained_bytes_per_s": level.sustained_bytes_per_s}
            for level in cluster.levels
        ]
        print_json({"name": cluster.name, "source": cluster.source, "levels": levels})
        return
    from phaze_opt.report.tables import cluster_tables

    print_table(cluster_tables(cluster))


@app.command()
def bill(
    name: PresetArgument,
    devices: Annotated[int, typer.Option(help="Number of devices.")],
    as_json: JsonOption = False,
) -> None:
    """Estimate what the switches, cables and transceivers of a network cost and draw.

    Prices are public list prices and estimates with their ranges; network adapters, optical circuit
    switches and the links' part of the chips are not among them.

    Example: phaze-opt cluster bill dgx-h100 --devices 1024
    """
    from phaze_opt.network.bill import network_bill
    from phaze_opt.network.presets import load_cluster

    found = network_bill(load_cluster(name, devices), devices)
    if as_json:
        print_json(asdict(found))
        return
    from phaze_opt.report.tables import bill_table

    print_table(bill_table(found))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="What the cluster is called.")],
    base: Annotated[
        str, typer.Option("--from", help="Preset or file whose numbers it begins with.")
    ] = "dgx-h100",
    output: Annotated[
        Path | None, typer.Option(help="The file; NAME.toml by default.", show_default=False)
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a commented TOML file of a cluster, to be changed and given to any command.

    Levels may state bandwidth_gb_per_s, latency_us, launch_us and ramp_mb instead of SI units. A
    file with 'base = "dgx-h100"' states, level by level, only what differs.

    Example: phaze-opt cluster new mine --from dgx-h100 --output mine.toml
    """
    from phaze_opt.network.cluster_file import cluster_file_text
    from phaze_opt.network.presets import find_cluster

    cluster = find_cluster(base)
    source = f"{name}, from {base}: {cluster.source}" if cluster.source else f"{name}, from {base}"
    write_new_file(output, name, cluster_file_text(replace(cluster, source=source)), force=force)


@app.command(deprecated=True)
@takes(CollectiveOptions)
def collective(
    options: CollectiveOptions, name: PresetArgument, as_json: JsonOption = False
) -> None:
    """Do as 'estimate collective --cluster NAME', where this goes; all_reduce by default.

    Its JSON also has latency_s as time_s. Without --json it prints tables.

    Example: phaze-opt cluster collective dgx-a100 --devices 64 --bytes 1e9
    """
    estimates = replace(options, kind=options.kind or "all_reduce").estimate(name)
    if as_json or options.csv_file is not None:
        for estimated in estimates:
            print(json.dumps({**asdict(estimated), "time_s": estimated.latency_s}, allow_nan=False))
        return
    from phaze_opt.report.tables import rows_table
    from phaze_opt.units import format_bytes, format_seconds

    (estimated,) = estimates
    shown = [
        {
            "topology": level.topology,
            "sustained, GB/s": level.sustained_bytes_per_s / 1e9,
            "sent per device": format_bytes(level.bytes_per_device),
        }
        for level in estimated.levels
    ]
    print_table(rows_table(shown))
    print(f"{estimated.algorithm}, {format_seconds(estimated.latency_s)}")


def _summary(name: str, cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as ``cluster ls --json`` prints it: a number per level."""
    return {
        "name": name,
        "levels": [
            {"topology": level.topology, "axes": list(level.axes), "group_size": level.group_size}
            for level in cluster.levels
        ],
        "gb_per_s": [level.sustained_bytes_per_s / 1e9 for level in cluster.levels],
        "latency_us": [level.latency_s * 1e6 for level in cluster.levels],
    }
