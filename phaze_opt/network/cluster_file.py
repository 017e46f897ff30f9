"""A cluster as a TOML file that `phaze_opt.network.cluster.find_cluster` reads back."""

from __future__ import annotations

from phaze_opt.codec import toml_lines, toml_value
from phaze_opt.network.cluster import Cluster


def cluster_file_text(cluster: Cluster) -> str:
    """Write the levels of a cluster and their source.

    Parameters
    ----------
    cluster
        Neither its name, which the path of the file gives, nor its devices, which a user of the
        file states, are written.
    """
    lines = [f"source = {toml_value(cluster.source)}"]
    for level in cluster.levels:
        lines += ["", "[[levels]]", *toml_lines(level)]
    return "\n".join(lines) + "\n"
