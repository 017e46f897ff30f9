from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.network.cluster import cluster_presets, find_cluster
from phaze_opt.network.cluster_file import cluster_file_text


@pytest.mark.parametrize("name", cluster_presets())
def test_a_cluster_is_read_back(tmp_path: Path, name: str) -> None:
    """Every level to the last bit; the file's name is the cluster's."""
    path = tmp_path / f"{name}.toml"
    cluster = cluster_presets()[name]
    path.write_text(cluster_file_text(cluster), encoding="utf-8")
    assert find_cluster(str(path)) == replace(cluster, devices=1)
