"""``phaze-opt spec new|schema``, ``study enumerate``, ``diff`` and the choice of trials."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.cli.conftest import Phaze

SPEC = """
name = "few"
model = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
cluster = "tpuv4-ici-flat"
devices = 4
global_batch = 8

[space]
base = "tpuv4-lanes"
num_tc = [4, 8]
glb_mib = { min = 32, max = 128 }
hbm_gib = [16, 32]
microbatch = { min = 1, max = 2 }

[search]
sampler = "brute-force"
trials = 24
"""


def test_the_enumeration_agrees_with_every_trial(phaze: Phaze) -> None:
    """The certified best is the best of a study of all points; asked again, it is stored."""
    Path("few.toml").write_text(SPEC)
    checked = phaze("spec", "check", "few.toml", "--json").json
    assert (checked["points"], checked["feasible_share"]) == (24, 1.0)
    assert phaze("study", "create", "few.toml").code == 0
    answer = phaze("study", "enumerate", "few", "--top", "3", "--json").json
    assert answer["status"] == "certified" and answer["gap"] == 0.0
    assert answer["points"] == answer["bounded"] + answer["evaluated"] == 24
    assert len(answer["top"]) == 3 and answer["best"]["number"] is None
    keys = ("values", "params")
    assert [answer["top"][0][key] for key in keys] == [answer["best"][key] for key in keys]
    assert {"num_tc", "pe_x", "hbm_gib", "microbatch"} <= answer["top"][0]["params"].keys()
    every = phaze("study", "enumerate", "few", "--top", "3", "--no-bounds", "--json").json
    assert every["top"] == answer["top"] and every["evaluated"] == 24
    assert phaze("study", "enumerate", "few", "--top", "3", "--json").json == answer
    assert "certified" in phaze("study", "enumerate", "few", "--top", "3").out
    certified = ("study", "enumerate", "few", "--top", "3", "--certificate", "few.json", "--verify")
    assert phaze(*certified, "--memory-gib", "4").code == 0
    assert "verified" in phaze("study", "verify", "few.json").out
    text = Path("few.json").read_text()
    Path("few.json").write_text(text.replace('"points":24', '"points":25'))
    refused = phaze("study", "verify", "few.json")
    assert (refused.code, phaze("study", "verify", "no.json").code) == (2, 3)
    assert phaze("study", "enumerate", "few", "--memory-gib", "0.1").code == 2
    assert phaze(*certified, "--no-bounds").code == 2
    late = phaze("study", "enumerate", "few", "--time-limit", "0", "--json")
    assert (late.code, late.json["status"]) == (0, "time_limit")
    phaze("study", "run", "few")
    best = phaze("study", "best", "few", "--json").json
    assert best["values"] == answer["best"]["values"]
    assert best["params"] == answer["best"]["params"]
    fast = phaze("study", "trials", "few", "--where", "num_tc=8", "--sort=-value", "--json").json
    assert fast[0]["value"] == best["values"][0]
    assert len(fast) == 12
    assert len(phaze("study", "trials", "few", "--limit", "2", "--json").json) == 2
    assert phaze("study", "trials", "few", "--where", "num_tcs=8").code == 2


def test_a_new_spec_and_its_difference(phaze: Phaze) -> None:
    """A written spec can be created at once; two studies are compared key by key."""
    model = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
    options = ("--base", "tpuv4-lanes", "--model", model, "--devices", "4", "--global-batch", "16")
    assert phaze("spec", "new", "mine", *options).code == 0
    assert tomllib.loads(Path("mine.toml").read_text())["devices"] == 4
    assert phaze("spec", "new", "mine", *options).code == 4
    assert phaze("study", "create", "mine.toml").code == 0
    Path("few.toml").write_text(SPEC)
    assert phaze("study", "create", "few.toml").code == 0
    answer = phaze("study", "diff", "mine", "few", "--json").json
    keys = {line["key"] for line in answer["spec"]}
    assert {"spec.global_batch", "area_limit_mm2"} <= keys
    assert "global_batch" in phaze("study", "diff", "mine", "few").out
    assert "do not differ" in phaze("study", "diff", "few", "few").out


def test_the_schema_is_json(phaze: Phaze) -> None:
    """Printed, or written into a file."""
    printed = phaze("spec", "schema").json
    assert printed["$defs"]["StudySpec"]["properties"]["space"]
    assert phaze("spec", "schema", "--output", "s.json").code == 0
    assert Path("s.json").exists()


def test_searches_are_compared(phaze: Phaze) -> None:
    """Two searches of one question stand side by side, below the certified optimum."""
    for name, sampler in (("few", "brute-force"), ("some", "random")):
        spec = SPEC.replace("brute-force", sampler).replace("24", "25" if name == "few" else "5")
        Path(f"{name}.toml").write_text(spec)
        phaze("study", "create", f"{name}.toml", "--name", name)
        phaze("study", "run", name)
    known = phaze("study", "compare", "few", "some", "--json").json
    assert known["optimum"]["status"] == "best known"
    phaze("study", "enumerate", "some", "--top", "24")
    ran = phaze("study", "compare", "few", "some", "--html", "both.html", "--json")
    assert ran.json["optimum"]["status"] == "certified" and ran.json["points"] == 24
    assert ran.json["studies"][0]["regret"] == 0.0
    assert ran.json["random"][3]["expected_trials"] == 12.5
    assert "few (brute-force)" in Path("both.html").read_text()
    assert ran.sentence == "both.html holds the plot."
    shown = phaze("study", "compare", "few", "some")
    assert "certified" in shown.out and max(map(len, shown.out.splitlines())) <= 80
    assert phaze("study", "compare", "few", "none").code == 3
    assert phaze("study", "compare", "few", "few").code == 2
