"""``phaze-opt cluster``: the networks and their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .output import JsonOption, PresetArgument, print_json, print_rows, print_table, write_new_file

KindChoice = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]

app = typer.Typer(no_args_is_help=True, help="Look at clusters, and write one's own.")


@app.command("ls")
def list_all(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: phaze-opt cluster ls
    """
    from phaze_opt.network.presets import cluster_presets

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
def new(
    name: Annotated[str, typer.Argument(help="What the cluster is called.")],
    base: Annotated[
        str, typer.Option("--from", help="Preset or file whose numbers it begins with.")
    ] = "dgx-h100",
    output: Annotated[
        Path | None, typer.Option(help="The file; NAME.toml by default.", show_default=False)
    ] = None,
) -> None:
    """Write a commented TOML file of a cluster, to be changed and given to any command.

    Levels may state bandwidth_gb_per_s, latency_us, launch_us and ramp_mb instead of SI units. A
    file with 'base = "dgx-h100"' states, level by level, only what differs.

    Example: phaze-opt cluster new mine --from dgx-h100 --output mine.toml
    """
    from dataclasses import replace

    from phaze_opt.network.cluster_file import cluster_file_text
    from phaze_opt.network.presets import find_cluster

    cluster = find_cluster(base)
    source = f"{name}, from {base}: {cluster.source}" if cluster.source else f"{name}, from {base}"
    write_new_file(output, name, cluster_file_text(replace(cluster, source=source)))


@app.command()
def collective(
    name: PresetArgument,
    group: Annotated[int, typer.Option(help="Devices that take part.")],
    size_bytes: Annotated[float, typer.Option(min=0, help="Of the whole tensor.")],
    kind: Annotated[KindChoice, typer.Option(help="What they do.")] = "all_reduce",
    stride: Annotated[int, typer.Option(min=1, help="Distance of their ranks.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Show time, algorithm and bytes sent per device and level of one collective.

    Example: phaze-opt cluster collective dgx-a100 --group 64 --size-bytes 1e9
    """
    from phaze_opt.network.collective import collective_cost
    from phaze_opt.network.presets import load_cluster

    # A torus is cut to the slice that a job of this extent gets.
    cluster = load_cluster(name, max(1, group * stride))
    cost = collective_cost(kind, size_bytes, group, cluster, stride)
    levels = [
        {
            "topology": level.topology,
            "sustained_bytes_per_s": level.sustained_bytes_per_s,
            "bytes_per_device": sent,
        }
        for level, sent in zip(cluster.levels, cost.bytes_by_level, strict=True)
    ]
    if as_json:
        print_json({"algorithm": cost.algorithm, "time_s": cost.time_s, "levels": levels})
        return
    from phaze_opt.report.tables import rows_table
    from phaze_opt.units import format_bytes, format_seconds

    shown = [
        {
            "topology": level.topology,
            "sustained, GB/s": level.sustained_bytes_per_s / 1e9,
            "sent per device": format_bytes(sent),
        }
        for level, sent in zip(cluster.levels, cost.bytes_by_level, strict=True)
    ]
    print_table(rows_table(shown))
    print(f"{cost.algorithm}, {format_seconds(cost.time_s)}")
