"""``phaze-opt study pareto`` and ``robust``, with the real cost model on a small space."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Phaze
from tests.cli.test_enumerate import SPEC


def test_fronts_and_variations(phaze: Phaze) -> None:
    """The front begins at the certified best, which robust calls the winner."""
    Path("few.toml").write_text(SPEC)
    phaze("study", "create", "few.toml")
    ran = phaze("study", "pareto", "few", "--json")
    assert ran.code == 0
    front = ran.json["front"]
    assert ran.json["objectives"] == ["throughput_samples_per_s", "area_mm2"]
    assert front == phaze("study", "pareto", "few", "--no-bounds", "--json").json["front"]
    best = phaze("study", "enumerate", "few", "--json").json["top"][0]
    assert front[0]["values"][0] >= best["values"][0]
    with_energy = phaze("study", "pareto", "few", "--energy", "--json").json
    assert len(with_energy["front"]) >= len(front)
    assert "designs that no other one beats" in phaze("study", "pareto", "few").out
    robust = phaze("study", "robust", "few", "--json").json
    assert robust["winner"] == best
    designs = (*front, *(variant["best"] for variant in robust["variants"]))
    assert all(design["params"].keys() == best["params"].keys() for design in designs)
    shown = phaze("study", "show", "few", "--json").json
    stated, certified = shown["cost_model_version"], shown["certified"]
    assert certified["params"] == best["params"]
    for answer in (ran.json, robust, phaze("study", "enumerate", "few", "--json").json):
        assert answer["cost_model_version"] == answer["version"] == stated
    assert len(robust["variants"]) == robust["of"] == 8
    assert "the winner stays in" in phaze("study", "robust", "few").out


def test_refusals(phaze: Phaze) -> None:
    """Unknown studies and workers that cannot be are refused as everywhere."""
    Path("few.toml").write_text(SPEC)
    phaze("study", "create", "few.toml")
    for command in ("pareto", "robust"):
        assert phaze("study", command, "none").code == 3
        refused = phaze("study", command, "few", "--workers", "0")
        assert refused.code == 2
        assert "workers is 0, but it must be at least 1." in refused.sentence
