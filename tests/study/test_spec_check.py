"""What is said of a spec before it is run, and the specs that come with the project."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phaze_opt.study.spec_check as spec_check
from phaze_opt.codec import to_builtins
from phaze_opt.errors import InputError
from phaze_opt.report.specs import spec_table
from phaze_opt.report.study_words import models_words
from phaze_opt.spec.freezing import check_names, freeze
from phaze_opt.spec.schema import spec_schema
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec, WorkloadSpec, read_spec
from phaze_opt.spec.template import spec_text
from phaze_opt.study.spec_check import check_spec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.enumerating import enumerate_study
from studies.paper.settings import MODELS

STUDIES = Path(__file__).parents[2] / "studies"
SPECS = sorted(STUDIES.rglob("*.toml"))
MINIMAL = """
name = "small"
model = "bert-large"
cluster = "tpuv4-ici-flat"
devices = 8
global_batch = 64
"""


@pytest.mark.parametrize("path", SPECS, ids=lambda path: str(path.relative_to(STUDIES)))
def test_every_spec_of_the_project_is_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each passes the check, with some of its points evaluated."""
    monkeypatch.setattr(spec_check, "SAMPLED_CHIPS", 60)
    # Of the paper's models the others take their time, and differ in nothing else.
    evaluated = 1 if path.stem in ("quickstart", "quickstart-22nm", "bert-large") else 0
    monkeypatch.setattr(spec_check, "EVALUATED_POINTS", evaluated)
    checked = check_spec(read_spec(path))
    assert checked.points > 300
    assert 0 < checked.within_area <= checked.sampled == 60
    assert checked.evaluated == evaluated
    assert spec_table(checked)


def test_specs_of_the_paper_are_named_after_its_models() -> None:
    """One spec for each model of the paper, in its setting, and one for all."""
    names = {path.stem for path in (STUDIES / "phaze").glob("*.toml")} - {"common"}
    assert names == {*MODELS}
    common = read_spec(STUDIES / "phaze" / "common.toml")
    assert {run.model for run in common.runs} == names
    for name in names:
        spec = read_spec(STUDIES / "phaze" / f"{name}.toml")
        assert (spec.model, spec.devices, spec.global_batch) == (name, 1024, 4096)
        assert spec.space.points == 75_712 * 3 * 2 * 4
        assert check_names(spec).area_limit_mm2 == pytest.approx(278.82667631216, rel=1e-12)
        for key in ("cluster", "optimizer", "attention", "residency", "overlap", "area"):
            assert getattr(spec, key) == getattr(common, key)


@pytest.mark.parametrize(
    "change",
    [
        "baselines = ['mi300x']",
        "tensor_parallel = [3]",
        "sequence_parallel = true\nsequence = 511\ntensor_parallel = [2]",
        "[space]\nhbm_gb_per_s = [800, 1600]",
        "[space]\nbase = 'tpuv5'",
        "[space]\nmicrobatch = [1, 65]",
        "[area]\nmax_of = 'nothing'",
    ],
)
def test_check_and_create_refuse_alike(tmp_path: Path, change: str) -> None:
    """What the creation of a study refuses, the check refuses in the same words."""
    path = tmp_path / "study.toml"
    path.write_text(f"{MINIMAL}\n{change}\n")

    def sentence(use: Any) -> str:
        with pytest.raises(InputError) as caught:
            use(read_spec(path))
        return str(caught.value)

    def create(spec: StudySpec) -> None:
        create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")

    assert sentence(check_spec) == sentence(create)
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize("stated", ["study", "workload", "nowhere"])
def test_a_long_sequence_must_be_asked_for(tmp_path: Path, stated: str) -> None:
    """A configuration for 131,072 tokens needs the sequence, of the study or of the workload."""
    config = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    config |= {"vocab_size": 128, "intermediate_size": 128, "max_position_embeddings": 131_072}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    run = WorkloadSpec(f"hf:{tmp_path}", "long", sequence=64 if stated == "workload" else None)
    spec = StudySpec(
        "long",
        workloads=(run,),
        sequence=64 if stated == "study" else None,
        cluster="flat-4GiB",
        devices=1,
        global_batch=8,
    )
    if stated == "nowhere":
        for refuse in (check_names, freeze):
            with pytest.raises(InputError, match=r"131072 tokens .* sequence = 4096 in a study"):
                refuse(spec)
        return
    assert [workload.sequence for workload in freeze(spec)[1]] == [64]
    assert models_words(spec) == "long (64 tokens per sample)"


def test_a_check_says_what_a_run_will_meet(tmp_path: Path) -> None:
    """All points of a small space are looked at; baselines outside are named."""
    path = tmp_path / "study.toml"
    path.write_text(MINIMAL + "[space]\nnum_tc = [8, 16, 4096]\nglb_mib = [64, 128]\n")
    checked = check_spec(read_spec(path))
    assert (checked.points, checked.sampled, checked.within_area) == (6, 6, 2)
    assert (checked.evaluated, checked.feasible) == (2, 2)
    assert checked.feasible_share == pytest.approx(1 / 3)
    assert checked.within_limits == 2 and checked.boxes_s is not None
    assert checked.seconds_per_point is not None
    assert checked.trials_s == 60 * checked.seconds_per_point
    expected = "pe_vc is 1024, but is not searched, and the base has 128"
    assert checked.outside == {"tpuv4-lanes": expected}


def test_what_is_announced_is_done(tmp_path: Path) -> None:
    """A random search takes the announced share of its trials; an enumeration has those points."""
    path = tmp_path / "study.toml"
    tiny = MINIMAL.replace("bert-large", "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128")
    space = "[space]\nnum_tc = { min = 1, max = 64 }\npe_x = { min = 16, max = 512 }\n"
    path.write_text(tiny + space + "[search]\nsampler = 'random'\ntrials = 30\n")
    spec = read_spec(path)
    checked = check_spec(spec)
    assert checked.boxes_s is None and checked.trials_s is not None
    assert checked.seconds_per_point is not None
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    study.run()
    evaluated = sum(bool(trial.metrics and trial.metrics.runs) for trial in study.trials())
    assert 0.5 < evaluated * checked.seconds_per_point / checked.trials_s < 2.0
    assert enumerate_study(study).points == checked.within_limits


@given(st.sampled_from(SPECS))
def test_the_schema_has_every_key_of_every_spec(path: Path) -> None:
    """Whatever a spec of the project states is known to the schema."""
    schema = spec_schema()
    definitions = schema["$defs"]
    plain = to_builtins(read_spec(path))
    assert plain.keys() <= definitions["StudySpec"]["properties"].keys()
    space = next(
        schema_of_space
        for schema_of_space in definitions["StudySpec"]["properties"]["space"]["anyOf"]
        if schema_of_space.get("type") == "object"
    )
    # Numbers of the network's levels are named with dots, or in tables in the table of levels.
    levels = space["properties"]["network"]["patternProperties"]
    for name in plain["space"]:
        table, *inner = name.split(".")
        assert table in space["properties"]
        if inner:
            level, field = inner
            (known,) = (own for pattern, own in levels.items() if re.search(pattern, level))
            assert field in known["properties"]
            assert any(re.search(pattern, name) for pattern in space["patternProperties"])
    json.dumps(schema, allow_nan=False)


def test_the_schema_knows_the_numbers_of_a_level_and_no_others() -> None:
    """As the space itself does."""
    levels: dict[str, Any] = {"network.0.latency_us": [1, 2], "network.10.topology": "ring"}
    others = "network.0.latency", "network.0", "network.x.latency_us", "network.0.latency_us.x"
    (space,) = (
        each
        for each in spec_schema()["$defs"]["StudySpec"]["properties"]["space"]["anyOf"]
        if "patternProperties" in each
    )
    for name in (*levels, *others):
        known = any(re.search(pattern, name) for pattern in space["patternProperties"])
        assert known == (name in levels)
    Space("tpuv4-lanes", **levels)
    for name in others:
        unknown: dict[str, Any] = {name: 1}
        with pytest.raises(InputError):
            Space("tpuv4-lanes", **unknown)


@pytest.mark.parametrize(
    ("base", "area"), [("h100", "chip"), ("tpuv4-lanes", "phaze-22nm"), ("b200", "chip")]
)
def test_a_new_spec_is_valid_and_holds_its_base(tmp_path: Path, base: str, area: Any) -> None:
    """A file to begin with passes, and the base is a point of its space."""
    path = tmp_path / "mine.toml"
    text = spec_text(
        "mine",
        base=base,
        model="bert-large",
        cluster="tpuv4-ici-flat",
        devices=8,
        global_batch=64,
        area_model=area,
    )
    path.write_text(text)
    spec = read_spec(path)
    assert check_names(spec).baselines[0].name == base
    for name, axis in spec.space.searched.items():
        assert len(axis.values) > 1, name


def test_a_base_without_area_has_no_new_spec() -> None:
    """Around a chip whose area is unknown there is nothing to search within an area."""
    with pytest.raises(InputError, match="'mi300x' has no area"):
        spec_text(
            "mine",
            base="mi300x",
            model="bert-large",
            cluster="mi300x-node",
            devices=8,
            global_batch=64,
        )
