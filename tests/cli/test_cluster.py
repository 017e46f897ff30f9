"""``phaze-opt cluster``."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze_opt.network.bill import network_bill
from phaze_opt.network.presets import load_cluster
from tests.cli.conftest import Phaze


def test_clusters_are_listed_and_shown(phaze: Phaze) -> None:
    """Every preset has its levels, and the source of its numbers."""
    assert "dgx-a100" in {row["name"] for row in phaze("cluster", "ls", "--json").json}
    assert "dgx-a100" in phaze("cluster", "ls").out
    shown = phaze("cluster", "show", "dgx-a100", "--json").json
    assert len(shown["levels"]) == 2 and shown["source"]
    assert shown["source"] in " ".join(phaze("cluster", "show", "dgx-a100").out.split())


def test_a_cluster_says_which_ranks_are_neighbours(phaze: Phaze) -> None:
    """With rank 0 as the example."""
    text = " ".join(phaze("cluster", "show", "dgx-h100").out.split())
    assert "joins 8 devices; on it, rank 0 reaches ranks 1, 2, … 7" in text
    assert "joins all groups of 8; on it, rank 0 reaches ranks 8, 16, …" in text
    torus = " ".join(phaze("cluster", "show", "tpuv5p-torus").out.split())
    assert "neighbours of rank 0 along its axes: ranks 1, 16, 320" in torus


def test_a_cluster_of_ones_own_is_written_and_read(phaze: Phaze) -> None:
    """From a preset; a file that is there is not touched."""
    ran = phaze("cluster", "new", "mine", "--from", "nvl72", "--output", "net.toml")
    assert (ran.code, ran.out) == (0, "")
    shown = phaze("cluster", "show", "net.toml", "--json").json
    preset = phaze("cluster", "show", "nvl72", "--json").json
    assert shown["levels"] == preset["levels"]
    assert phaze("cluster", "new", "other", "--output", "net.toml").code == 4
    assert phaze("cluster", "new", "other", "--output", "net.txt").code == 2
    ran = phaze("estimate", "collective", "--cluster", "net.toml", "--kind", "all_reduce",
                "--devices", "72", "--bytes", "1e9", "--json")  # fmt: skip
    assert ran.json["latency_s"] > 0.0


def test_a_collective_shows_time_and_volume(phaze: Phaze) -> None:
    """64 devices in nodes of 8 move 7/8 of the tensor inside, twice, and of an eighth outside.

    Of a large tensor: at 1 GB the ramp of the inner links still adds 3 %.
    """
    command = ("cluster", "collective", "dgx-a100", "--group", "64", "--size-bytes", "1e12")
    shown = phaze(*command, "--json").json
    assert shown["algorithm"] == "hierarchical"
    assert [level["bytes_per_device"] for level in shown["levels"]] == [1.75e12, 0.21875e12]
    sent_s = sum(
        level["bytes_per_device"] / level["sustained_bytes_per_s"] for level in shown["levels"]
    )
    assert shown["time_s"] == pytest.approx(sent_s, rel=0.01)
    assert "hierarchical" in phaze(*command).out


def test_a_collective_has_an_old_name(phaze: Phaze, tmp_path: Path) -> None:
    """It takes the same options, the old ones too, and gives the same JSON, with one old key."""
    (tmp_path / "one.csv").write_text("kind,devices,bytes\nall_gather,8,1e9\n")
    in_nodes = ("--kind", "all_gather", "--devices", "8")
    for options in (
        (*in_nodes, "--bytes", "1e9", "--stride", "4"),
        (*in_nodes, "--bytes", "1e9", "--call-overhead-us", "25"),
        ("--kind", "all_gather", "--group", "8", "--size-bytes", "1e9"),
        ("--csv", "one.csv"),
    ):
        new = phaze("estimate", "collective", "--cluster", "dgx-a100", *options, "--json")
        old = phaze("cluster", "collective", "dgx-a100", *options, "--json")
        assert old.json == {**new.json, "time_s": new.json["latency_s"]}
        assert "deprecated" in old.err and not new.err
    far = phaze("estimate", "collective", "--cluster", "dgx-a100", *in_nodes, "--bytes", "1e9",
                "--stride", "8").json  # fmt: skip
    assert far["levels"][0]["bytes_per_device"] == 0.0 < far["levels"][1]["bytes_per_device"]
    assert "deprecated" in phaze("cluster", "collective", "--help").out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("--group", "0"), "at least 1"),
        (("--group", "8", "--size-bytes", "-1"), "size_bytes is -1.0"),
        (("--group", "8", "--kind", "broadcast"), "--kind"),
        (("--group", "9000"), "joins at most"),
    ],
)
def test_bad_values_are_named(phaze: Phaze, changes: tuple[str, ...], sentence: str) -> None:
    """A value that is not allowed is named, with exit code 2."""
    ran = phaze("cluster", "collective", "tpuv4-torus", "--size-bytes", "1e6", *changes)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


def test_a_bill_of_the_network(phaze: Phaze) -> None:
    """As JSON, and as a table; a file may state the network."""
    shown = phaze("cluster", "bill", "dgx-h100", "--devices", "1024", "--json").json
    bill = network_bill(load_cluster("dgx-h100", 1024), 1024)
    assert shown["usd"]["central"] == bill.usd.central
    assert [level["tiers"] for level in shown["levels"]] == [1, 2]
    assert "tiers of switches" in phaze("cluster", "bill", "nvl72", "--devices", "72").out
    # As people write numbers, never as powers of ten.
    assert "e+" not in phaze("cluster", "bill", "dgx-h100", "--devices", "1024").out
    assert phaze("cluster", "bill", "tpuv4-torus", "--devices", "5000").code == 2
