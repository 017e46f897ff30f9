import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.codec import to_builtins
from phaze_opt.errors import InputError
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.cluster_file import LEVEL_ALIASES, cluster_file_text
from phaze_opt.network.presets import cluster_presets, find_cluster


@pytest.mark.parametrize("name", cluster_presets())
def test_a_cluster_is_read_back(tmp_path: Path, name: str) -> None:
    """Every level to the last bit; the file's name is the cluster's."""
    path = tmp_path / f"{name}.toml"
    cluster = cluster_presets()[name]
    path.write_text(cluster_file_text(cluster), encoding="utf-8")
    assert find_cluster(str(path)) == replace(cluster, devices=1)


def written(tmp_path: Path, text: str, name: str = "net.toml") -> Cluster:
    """Write a file and read it."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return find_cluster(str(path))


@pytest.mark.parametrize("name", cluster_presets())
def test_what_is_shown_as_json_is_the_same_cluster_as_a_file(tmp_path: Path, name: str) -> None:
    """With the sustained bandwidths, which follow from the others."""
    cluster = cluster_presets()[name]
    levels = [
        {**to_builtins(level), "sustained_bytes_per_s": level.sustained_bytes_per_s}
        for level in cluster.levels
    ]
    text = json.dumps({"name": name, "source": cluster.source, "levels": levels})
    assert written(tmp_path, text, f"{name}.json") == cluster


@pytest.mark.parametrize("name", LEVEL_ALIASES)
def test_an_alias_sets_its_field(tmp_path: Path, name: str) -> None:
    """Beside the other numbers of a level."""
    alias, base = LEVEL_ALIASES[name], cluster_presets()["dgx-h100"]
    found = written(tmp_path, f'base = "dgx-h100"\n[[levels]]\n{name} = 2.5\n')
    changed: dict[str, Any] = {alias.field: alias.to_field(2.5)}
    first = replace(base.levels[0], **changed)
    assert found.levels == (first, base.levels[1])


def test_a_file_changes_its_base_level_by_level(tmp_path: Path) -> None:
    """A size brings its own axes, and levels may be added outside."""
    base = cluster_presets()["dgx-h100"]
    found = written(
        tmp_path,
        'base = "dgx-h100"\n[[levels]]\ngroup_size = 16\n[[levels]]\ngroup_size = 4\n'
        '[[levels]]\nbandwidth_gb_per_s = 1\nlatency_us = 10\ntopology = "switch"\n',
    )
    assert [level.group_size for level in found.levels] == [16, 4, None]
    assert replace(found.levels[0], group_size=8) == base.levels[0]
    assert found.levels[2].latency_s == 1e-5
    again = written(tmp_path, 'base = "net.toml"\n', "second.toml")
    assert again.levels == found.levels
    torus = written(tmp_path, 'base = "tpuv5e-torus"\n[[levels]]\naxes = [4, 4]\n')
    assert torus.levels[0].group_size == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "dgx-h10"', "Did you mean 'dgx-h100'"),
        ('base = "net.toml"', "which is based on it again"),
        ('base = "dgx-h100"\n[[levels]]\nlatency_ms = 1', "Did you mean 'latency_"),
        ('base = "dgx-h100"\n[[levels]]\nlatency_us = 1\nlatency_s = 1', "state the same number"),
        ('base = "dgx-h100"\n[[levels]]\nlatency_us = "1"', "must be a finite number"),
        ("levels = 3", "levels in the cluster file"),
        ("levels = []", "no network level"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    """With the number and the file."""
    with pytest.raises(InputError, match=message):
        written(tmp_path, text)
