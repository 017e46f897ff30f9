"""``phaze-opt accelerator`` and ``phaze-opt workload``."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec, read_spec
from phaze_opt.study.study import create_study
from tests.cli.conftest import Phaze

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"

_OPTIONS = ("microbatch", "recompute", "zero", "attention")

OWN_MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, batch_first=True) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

def make(microbatch):
    return Model(), torch.zeros(microbatch, 32, 64)
"""


def test_accelerators_are_listed(phaze: Phaze) -> None:
    """Both baselines are among the presets."""
    names = {row["name"] for row in phaze("accelerator", "ls", "--json").json}
    assert {"tpuv4-phaze", "tpuv4-lanes"} <= names
    assert "tpuv4-phaze" in phaze("accelerator", "ls").out


def test_an_accelerator_shows_its_numbers(phaze: Phaze) -> None:
    """Every number is shown, with what was changed, and with its source."""
    shown = phaze("accelerator", "show", "tpuv4-phaze", "--set", "hbm_gib=80", "--json").json
    assert shown["hbm_bytes"] == 80 * 2**30
    assert shown["area_mm2"] == pytest.approx(278.82667631216)
    assert shown["calibration"]["usable_hbm_share"] == 0.94
    assert shown["provenance"]["hbm_bytes"]["source"] == "changed by --set"
    assert shown["provenance"]["num_tc"]["source"].startswith("Phaze")
    table = phaze("accelerator", "show", "tpuv4-phaze").out
    assert "calibration.hbm_efficiency" in table and "Phaze" in table


def test_an_accelerator_of_ones_own_goes_through_every_command(phaze: Phaze) -> None:
    """Written from a preset, changed, checked, shown, and compared with the preset."""
    ran = phaze("accelerator", "new", "mine", "--from", "mi300x", "--set", "hbm_gb_per_s=6000")
    assert (ran.code, ran.out) == (0, "") and "mine.toml" in ran.err
    again = phaze("accelerator", "new", "mine")
    assert (again.code, "exists already" in again.sentence) == (4, True)
    Path("based.toml").write_text('base = "mine.toml"\nglb_mib = 128\n')
    shown = phaze("accelerator", "show", "based.toml", "--json").json
    assert shown["hbm_bytes_per_s"] == 6e12
    assert phaze("accelerator", "show", "mine.toml", "--json").json["area_mm2"] is None
    checked = phaze("accelerator", "check", "based.toml", "--json").json
    origins = {row["field"]: row["origin"] for row in checked["fields"]}
    assert (origins["glb_bytes"], origins["num_tc"]) == ("stated", "stated")
    assert "hbm_gb_per_s" in phaze("accelerator", "check", "based.toml").out
    compared = phaze("accelerator", "compare", "mi300x", "based.toml", "--json").json
    assert {"glb_bytes", "hbm_bytes_per_s"} <= {row["field"] for row in compared}
    run = ("--model", TINY, "--devices", "4", "--global-batch", "8", "--cluster", "mi300x-node")
    compared = phaze("accelerator", "compare", "mi300x", "based.toml", *run, "--json").json
    ratios = {row["field"]: row["ratio"] for row in compared}
    assert ratios["throughput, samples/s"] >= 1.0
    assert "throughput" in phaze("accelerator", "compare", "mi300x", "based.toml", *run).out


def test_a_chip_without_area_is_not_faster_without_a_word(phaze: Phaze) -> None:
    """A device may be a wafer, which the comparison says; chips with areas need no such words."""
    model = "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=1024"
    run = ["--model", model, "--devices", "4", "--global-batch", "16", "--cluster", "dgx-h100"]
    words = " ".join(phaze("accelerator", "compare", "h100", "wse2", *run).out.split())
    assert "no area is known of wse2" in words
    assert "a wafer of 46,225 mm²" in words
    assert "no area" not in phaze("accelerator", "compare", "h100", "a100-80", *run).out
    listed = phaze("accelerator", "ls", "--json").json
    assert {row["name"] for row in listed if row["hbm_gib"] == 0} == {"groq-lpu", "wse2", "wse3"}


def test_chips_are_compared_as_a_study_compares_them(phaze: Phaze) -> None:
    """The winner over a baseline, in the setting of the quickstart: the ratio of the study."""
    quickstart = read_spec(Path(__file__).parents[2] / "studies" / "quickstart.toml")
    options = {name: axis for name, axis in quickstart.space.axes.items() if name in _OPTIONS}
    cores = {"num_tc": 8, "num_vc": 2, "pe_x": 128, "pe_y": 256, "pe_vc": 2048}
    axes: dict[str, Any] = {**cores, "glb_mib": 8, "hbm_gib": 48, "hbm_gb_per_s": 1800, **options}
    axes["microbatch"] = [2, 4]
    space = Space("tpuv4-lanes", **axes)
    search = SearchSpec(sampler="brute-force", trials=space.points)
    spec = replace(quickstart, devices=8, global_batch=32, space=space, search=search)
    create_study(spec, "sqlite:///phaze.db").run()
    best = phaze("study", "best", "quickstart", "--accelerator-toml", "winner.toml", "--json").json
    run = "--model bert-large --attention solve --cluster tpuv4-ici-flat --devices 8"
    asked = (*run.split(), "--global-batch", "32", "--microbatch", "2,4")
    for baseline in best["baselines"]:
        names = (baseline["name"], "winner.toml")
        rows = phaze("accelerator", "compare", *names, *asked, "--json").json
        compared = {row["field"]: row for row in rows}
        assert compared["throughput, samples/s"]["ratio"] == pytest.approx(baseline["ratio"])
        for option in _OPTIONS:
            assert compared[option]["winner.toml"] == best["params"][option]
            assert compared[option][names[0]] == baseline["params"][option]
    shown = " ".join(phaze("accelerator", "compare", *names, *asked).out.split())
    said = "bert-large on 8 devices, tpuv4-ici-flat, global batch 32, adam"
    assert shown.startswith(said) and compared["run"]["winner.toml"].startswith(said)
    assert "microbatch 2, 4; recompute none, full; zero 0, 1; attention eager, flash" in shown
    answer = phaze("accelerator", "compare", *names, *asked[:-1], "1", "--json").json
    assert {row["field"]: row for row in answer}["microbatch"]["winner.toml"] == 1


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--microbatch=many", "--microbatch is 'many', but it must be solve or whole numbers"),
        ("--microbatch=16", "must not be above the global batch of 8"),
        ("--recompute=some", "Allowed: full, none, selective, solve"),
        ("--zero=7", "zero"),
    ],
)
def test_a_run_that_is_none_is_refused(phaze: Phaze, option: str, sentence: str) -> None:
    """With exit code 2 and a sentence."""
    run = ("--model", TINY, "--devices", "4", "--global-batch", "8", option)
    ran = phaze("accelerator", "compare", "h100", "a100-80", *run)
    assert (ran.code, ran.out) == (2, "") and sentence in ran.sentence


def test_a_chip_that_is_too_small_is_said(phaze: Phaze) -> None:
    """Its throughput is zero, and there is no ratio to it."""
    Path("small.toml").write_text('base = "h100"\nhbm_gib = 0.0001\n')
    run = ("--model", TINY, "--devices", "4", "--global-batch", "8", "--json")
    rows = phaze("accelerator", "compare", "small.toml", "h100", *run).json
    compared = {row["field"]: row for row in rows}
    assert compared["throughput, samples/s"]["small.toml"] == 0.0
    assert compared["throughput, samples/s"]["ratio"] is None
    assert compared["bound by"]["small.toml"] == "fits under no option"


def test_what_show_prints_is_the_same_accelerator_as_a_file(phaze: Phaze) -> None:
    """Changes included."""
    shown = phaze("accelerator", "show", "h100", "--set", "peak_tflops=700", "--json")
    Path("shown.json").write_text(shown.out)
    again = phaze("accelerator", "show", "shown.json", "--json").json
    ignored = ("name", "description", "provenance")
    kept = {key: value for key, value in shown.json.items() if key not in ignored}
    assert {key: again[key] for key in kept} == kept


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('base = "h100"\npeak_tflops = 1\nclock_ghz = 1\n', "both state the clock"),
        ('base = "h100"\nhbm_gb = 1\n', "Did you mean 'hbm_gib'"),
        ('base = "h100"\npe_x = 100000\n', "larger than a chip"),
    ],
)
def test_a_broken_accelerator_file_is_refused(phaze: Phaze, text: str, sentence: str) -> None:
    """With exit code 2 and a sentence."""
    Path("bad.toml").write_text(text)
    ran = phaze("accelerator", "check", "bad.toml")
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


def test_an_evaluation_warns_of_what_a_file_leaves_out(phaze: Phaze) -> None:
    """On stderr only; a changed number is nobody's omission."""
    Path("paper.toml").write_text(
        "num_tc = 4\nnum_vc = 4\npe_x = 64\npe_y = 64\npe_vc = 64\nglb_mib = 32\n"
    )
    run = ("--model", TINY, "--accelerator", "paper.toml", "--cluster", "flat-4GiB", "--devices",
           "1", "--global-batch", "4", "--microbatch", "4", "--json")  # fmt: skip
    ran = phaze("evaluate", *run)
    assert (ran.code, ran.json["feasible"]) == (0, True)
    assert "does not state clock_ghz" in ran.err
    changed = phaze("evaluate", *run, "--set", "clock_ghz=1")
    assert "clock_ghz" not in changed.err
    assert "does not state" in phaze("explain", *run).err


def test_workloads_are_listed(phaze: Phaze) -> None:
    """The models of the package are shown with their shapes."""
    rows = phaze("workload", "ls", "--json").json
    assert {"bert-large", "gpt2-xl"} <= {row["name"] for row in rows}
    assert "gpt2-xl" in phaze("workload", "ls").out


def test_a_shown_workload_has_the_documented_keys(phaze: Phaze) -> None:
    """The help names every key, and the totals are those of the whole model."""
    shown = phaze("workload", "show", "bert-large", "--tensor-parallel", "2", "--json").json
    sizes = {"none", "selective", "full"}
    assert shown.keys() == {
        *("model", "sequence", "parameters", "tensor_parallel", "microbatch"),
        *("sequence_parallel", "layers"),
    }
    for layer in shown["layers"]:
        assert layer.keys() == {
            *("name", "count", "parameters", "tied_parameters", "forward_flops"),
            *("backward_flops", "stash_bytes", "transient_bytes", "output_bytes"),
            *("forward_operators", "backward_operators", "collective_bytes"),
        }
        assert layer["stash_bytes"].keys() == layer["transient_bytes"].keys() == sizes
    text = " ".join(phaze("workload", "show", "--help").out.split())
    assert all(key in text for key in {*shown, *shown["layers"][0], *sizes})
    whole = phaze("workload", "show", "bert-large", "--json").json
    held = [layer["count"] * layer["parameters"] for layer in whole["layers"]]
    tied = max(layer["tied_parameters"] for layer in whole["layers"])
    assert whole["parameters"] == shown["parameters"] == sum(held) - tied


def test_a_workload_is_captured_into_a_file(phaze: Phaze) -> None:
    """A captured file stands for the model everywhere."""
    assert phaze("workload", "capture", TINY, "--output", "tiny.json").code == 0
    assert Path("tiny.json").exists()
    direct = phaze("workload", "show", TINY, "--json").json
    from_file = phaze("workload", "show", "tiny.json", "--json").json
    assert direct["layers"] == from_file["layers"]
    assert "block" in phaze("workload", "show", "tiny.json").out


def test_a_hugging_face_configuration_is_told_by_its_content(phaze: Phaze) -> None:
    """A configuration is a model, with and without its prefix; what is neither says what is."""
    Path("config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    shown = phaze("workload", "show", "config.json", "--json").json
    prefixed = phaze("workload", "show", "hf:config.json", "--json").json
    assert (shown.pop("model"), prefixed.pop("model")) == ("config.json", "hf:config.json")
    assert shown == prefixed
    Path("config.json").write_text('{"model_type": "mamba"}')
    refused = phaze("workload", "show", "config.json")
    assert refused.code == 2
    assert "capture it: `phaze-opt workload capture" in refused.sentence
    Path("other.json").write_text("{}")
    refused = phaze("workload", "show", "other.json")
    assert refused.code == 2
    assert "neither a captured workload nor a Hugging Face configuration" in refused.sentence


def test_a_users_module_is_captured_and_evaluated(phaze: Phaze) -> None:
    """A factory in the working directory becomes a file that stands for the model."""
    Path("my_model.py").write_text(OWN_MODEL)
    ran = phaze("workload", "capture", "my_model:make", "--microbatch", "2", "--output", "my.json")
    assert (ran.code, ran.out) == (0, "")
    assert "running my_model:make" in ran.err
    shown = phaze("workload", "show", "my.json", "--microbatch", "2", "--json").json
    assert sum(layer["count"] for layer in shown["layers"]) >= 3
    evaluated = phaze(
        "evaluate", "--model", "my.json", "--accelerator", "tpuv4-lanes", "--cluster", "flat-4GiB",
        "--devices", "4", "--global-batch", "16", "--microbatch", "2", "--json",
    )  # fmt: skip
    assert evaluated.json["feasible"]


def test_tokens_of_a_users_module_can_be_said(phaze: Phaze) -> None:
    """By name, or by the option's old one; a model that has its own is not to be told."""
    Path("my_model.py").write_text(OWN_MODEL)
    to_file = ("workload", "capture", "my_model:make", "--force", "--output", "my.json")
    for option, note in (("--tokens-per-sample", ""), ("--sequence", "now called --tokens-per-")):
        ran = phaze(*to_file, option, "77")
        assert ran.code == 0 and note in ran.err and "77 tokens per sample" in ran.err
        assert phaze("workload", "show", "my.json", "--json").json["sequence"] == 77
    refused = phaze("workload", "capture", TINY, "--tokens-per-sample", "77", "--output", "t.json")
    assert refused.code == 2 and "--sequence changes them" in refused.sentence
    assert not Path("t.json").exists()


PLANNED_MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

def make(microbatch):
    plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
    return Model(), torch.zeros(microbatch, 32, 64), plan
"""


def test_a_planned_module_is_captured_at_several_tensor_degrees(phaze: Phaze) -> None:
    """A module with a plan is evaluated at every tensor degree that it was captured at."""
    Path("planned_model.py").write_text(PLANNED_MODEL)
    tensor_degrees = ("--tensor-parallel", "1", "--tensor-parallel", "4")
    ran = phaze(
        "workload", "capture", "planned_model:make", *tensor_degrees, "--output", "planned.json"
    )
    assert ran.code == 0, ran.err
    assert "2 variants" in ran.err
    shown = phaze("workload", "show", "planned.json", "--tensor-parallel", "4", "--json").json
    held = sum(layer["count"] * layer["parameters"] for layer in shown["layers"])
    assert held == 3 * ((64 * 256 + 256 + 256 * 64) // 4 + 64)
    assert shown["parameters"] == 3 * (64 * 256 + 256 + 256 * 64 + 64)
    for placement in ("1x4x1", "1x1x4", "solve"):
        evaluated = phaze(
            "evaluate", "--model", "planned.json", "--accelerator", "tpuv4-lanes", "--cluster",
            "flat-4GiB", "--devices", "4", "--global-batch", "16", "--microbatch", "1",
            "--placement", placement, "--json",
        )  # fmt: skip
        assert evaluated.json["feasible"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("no_such_module:make",), "cannot be imported"),
        (("os:no_such_function",), "no function 'no_such_function'"),
        (("my_model:make", "--tensor-parallel", "2"), "return a plan beside the inputs"),
        (("my_model:make", "--sequence-parallel"), "leave out --sequence-parallel"),
        (("tests.workload.user_modules:ending",), "user_modules.py:"),
    ],
)
def test_a_broken_factory_gives_one_sentence(
    phaze: Phaze, arguments: tuple[str, ...], sentence: str
) -> None:
    """Whatever a user's code does wrong ends as a usage error, and no file is left."""
    ran = phaze("workload", "capture", *arguments, "--output", "my.json")
    assert ran.code == 2
    assert sentence in ran.sentence
    assert not Path("my.json").exists()


def test_the_passes_of_a_layer_are_written_as_problems(phaze: Phaze) -> None:
    """With what may stay on the chip; the scheduler solves the file as it is."""
    chip = ("--accelerator", "tpuv4-lanes", "--set", "glb_mib=16")
    ran = phaze("workload", "show", TINY, "--schedule-problem", "p.jsonl", *chip)
    assert ran.code == 0 and "6 problems" in ran.err
    solved = phaze("schedule", "p.jsonl")
    lines = [json.loads(line) for line in solved.out.splitlines()]
    assert [line["name"] for line in lines][2:4] == ["block forward", "block backward"]
    assert all(line["status"] == "optimal" for line in lines)
    assert any(line.get("resident") for line in lines)
    run = ("--model", TINY, "--cluster", "tpuv4-ici-flat", "--devices", "1", "--global-batch", "1",
           "--microbatch", "1", "--accelerator", "tpuv4-lanes", "--set", "glb_mib=16")  # fmt: skip
    block = phaze("evaluate", *run, "--proof", "--json").json["layers"][1]
    assert lines[2]["makespan_s"] == pytest.approx(block["forward_s"], rel=1e-9)
    assert lines[3]["makespan_s"] == pytest.approx(block["backward_s"], rel=1e-9)
    assert block["forward_schedule"]["method"]


def test_the_attention_of_a_model_is_changed(phaze: Phaze) -> None:
    """To one fused core and back; a captured file keeps its own."""
    run = ("evaluate", "--cluster", "flat-4GiB", "--devices", "1", "--global-batch", "2",
           "--microbatch", "2", "--accelerator", "tpuv4-lanes", "--json")  # fmt: skip
    eager = phaze(*run, "--model", TINY)
    flash = phaze(*run, "--model", TINY, "--attention", "flash")
    named = phaze(*run, "--model", f"{TINY},attention=flash")
    assert flash.json["layers"] == named.json["layers"] != eager.json["layers"]
    assert phaze(*run, "--model", TINY, "--attention", "eager").json == eager.json
    phaze("workload", "capture", TINY, "--output", "tiny.json")
    refused = phaze(*run, "--model", "tiny.json", "--attention", "flash")
    assert (refused.code, "its own attention" in refused.sentence) == (2, True)


def test_residency_is_switched_off(phaze: Phaze) -> None:
    """And is never slower than without."""
    run = ("--model", "bert-large", "--cluster", "flat-4GiB", "--devices", "1", "--global-batch",
           "4", "--microbatch", "4", "--accelerator", "tpuv4-lanes")  # fmt: skip
    with_it, without = (
        phaze("evaluate", *run, "--json", *off).json for off in ((), ("--no-residency",))
    )
    assert with_it["time_per_batch_s"] < without["time_per_batch_s"]
    text = phaze("explain", *run).out
    assert "What stays in the global buffer" in text and "counts at both ends" in text
    assert "What stays" not in phaze("explain", *run, "--no-residency").out


def test_a_layer_is_drawn(phaze: Phaze) -> None:
    """The operators of a layer's pass are drawn as a page or in the DOT language."""
    assert phaze("workload", "show", TINY, "--graph", "block.html").code == 0
    assert "on all cores" not in Path("block.html").read_text("utf-8")
    timed = ("--graph", "timed.html", "--accelerator", "tpuv4-lanes")
    assert phaze("workload", "show", TINY, *timed).code == 0
    assert re.search(r"[\d.]+ µs on all cores, [\d.]+ µs on one", Path("timed.html").read_text())
    assert "<svg" in Path("block.html").read_text("utf-8")
    assert (
        phaze("workload", "show", TINY, "--graph", "b.dot", "--backward", "--layer", "head").code
        == 0
    )
    assert Path("b.dot").read_text("utf-8").startswith("digraph")
    wrong = phaze("workload", "show", TINY, "--graph", "c.dot", "--layer", "blok")
    assert (wrong.code, "Did you mean 'block'" in wrong.sentence) == (2, True)
