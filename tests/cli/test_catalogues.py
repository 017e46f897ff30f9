"""``phaze-opt accelerator`` and ``phaze-opt workload``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Phaze

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"

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


def test_a_planned_module_is_captured_at_several_widths(phaze: Phaze) -> None:
    """A module with a plan is evaluated at every width that it was captured at."""
    Path("planned_model.py").write_text(PLANNED_MODEL)
    widths = ("--tensor-parallel", "1", "--tensor-parallel", "4")
    ran = phaze("workload", "capture", "planned_model:make", *widths, "--output", "planned.json")
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


def test_a_layer_is_drawn(phaze: Phaze) -> None:
    """The operators of a layer's pass are drawn as a page or in the DOT language."""
    assert phaze("workload", "show", TINY, "--graph", "block.html").code == 0
    assert "<svg" in Path("block.html").read_text("utf-8")
    assert (
        phaze("workload", "show", TINY, "--graph", "b.dot", "--backward", "--layer", "head").code
        == 0
    )
    assert Path("b.dot").read_text("utf-8").startswith("digraph")
    wrong = phaze("workload", "show", TINY, "--graph", "b.dot", "--layer", "blok")
    assert (wrong.code, "Did you mean 'block'" in wrong.sentence) == (2, True)
