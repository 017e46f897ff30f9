"""Slices of a torus: the same rule, wherever a slice comes from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.cluster_file import cluster_file_text
from phaze_opt.network.presets import cluster_presets, load_cluster
from phaze_opt.network.slices import slice_for, slices

TORI = [name for name, one in cluster_presets().items() if one.levels[0].topology == "torus"]


@pytest.mark.parametrize("name", sorted(set(cluster_presets()) - set(TORI)))
def test_what_is_no_torus_has_one_slice(name: str) -> None:
    """A run on switches takes what there is."""
    cluster = load_cluster(name, 8)
    assert slices(cluster) == (cluster,)


@given(name=st.sampled_from(TORI), share=st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_slices_are_those_of_fewer_devices(name: str, share: float) -> None:
    """Every slice is what one gets who asks for as many devices, down to one."""
    most = min(math.prod(cluster_presets()[name].levels[0].axes), 256)
    cluster = load_cluster(name, max(1, int(share * most)))
    whole, *smaller = slices(cluster)
    assert whole == cluster
    assert smaller == [load_cluster(name, one.devices) for one in smaller]
    sizes = [math.prod(one.levels[0].axes) for one in slices(cluster)]
    assert sizes == sorted(set(sizes), reverse=True) and sizes[-1] == 1
    assert [one.devices for one in smaller] == sizes[1:]


@given(
    axes=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    share=st.floats(0.0, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_more_devices_have_the_slices_of_fewer(axes: tuple[int, ...], share: float) -> None:
    """What a run may take of some devices, it may take of more, with as many devices or more."""
    pod = Cluster("pod", (NetworkLevel(1e9, 1e-6, "torus", axes=axes),), math.prod(axes))
    fewer = slice_for(pod, max(1, int(share * pod.devices)))
    found = {one.levels: one.devices for one in slices(pod)}
    for one in slices(fewer):
        assert found[one.levels] >= one.devices


def test_files_have_the_same_slices(tmp_path: Path) -> None:
    """The torus of a file is sliced as one of a preset is, levels around it stay."""
    path = tmp_path / "mine.toml"
    path.write_text(cluster_file_text(replace(cluster_presets()["trn2-efa"], name="mine")), "utf-8")
    cluster = load_cluster(str(path), 40)
    assert [one.levels[0].axes for one in slices(cluster)] == [
        (4, 4), (4, 2), (2, 2), (2, 1), (1, 1),
    ]  # fmt: skip
    assert {one.levels[1:] for one in slices(cluster)} == {cluster.levels[1:]}
    assert [one.devices for one in slices(cluster)] == [40, 8, 4, 2, 1]
