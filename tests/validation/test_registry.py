"""What is measured is all there: predicted or listed, with a source and a provenance."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from dataclasses import fields
from importlib import resources
from pathlib import Path

import pytest

from phaze_opt.hardware.presets import accelerator_presets
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.software import SOFTWARE
from phaze_opt.training import Training
from phaze_opt.validation.measured import (
    OPEN_COLUMNS,
    TRAINING_FILES,
    UnexpressedRow,
    ValidationRow,
    ValidationTable,
    unexpressed_rows,
)
from phaze_opt.validation.registry import GROUPS, PREDICTORS, validate
from phaze_opt.validation.runs import _NOT_OPTIONS
from phaze_opt.workload.zoo import load_workload

DATA = Path(str(resources.files("phaze_opt"))) / "validation" / "data"
TABLES = sorted(DATA.glob("*.csv"))
PUBLISHED = {
    "korthikanti": 4,
    "narayanan": 5,
    "torchtitan": 16,
    "mpt": 21,
    "maxtext": 16,
    "tpu-recipes": 5,
    "misc": 12,
    "megatron-bridge": 56,
    "megatron-bridge-deepseek-v4": 1,
    "megatron-bridge-recipes": 5,
    "megatron-bridge-experts": 31,
    "megatron-bridge-experts-bf16": 3,
    "megatron-bridge-nccl": 10,
    "megatron-lm-ladder": 7,
    "mlperf": 23,
    "automodel": 6,
    "megatron-moe": 7,
    "megatron-bridge-hybrids": 17,
    "megatron-bridge-lora": 4,
}
"""Rows of the tables of training runs as they were collected."""
BEST_PRODUCTS = 20
"""Rows of the table of fastest products, in two precisions."""


def rows_of(name: str) -> list[dict[str, str]]:
    """Read one data file."""
    return list(csv.DictReader((DATA / name).read_text("utf-8").splitlines()))


def test_every_group_has_a_tuple_of_functions() -> None:
    """The registry is where other modules plug their tables in."""
    assert set(PREDICTORS) == set(GROUPS)
    assert {"operators", "attention", "collectives", "training", "memory"} == set(GROUPS)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_data_file_says_who_measured_when_and_with_what(path: Path) -> None:
    """A provenance file stands beside each, for the file or for each table in it."""
    provenance = tomllib.loads(path.with_suffix(".toml").read_text("utf-8"))
    tables = {row["table"] for row in rows_of(path.name) if "table" in row}
    several = tables and tables <= provenance.keys()
    for part in [provenance[name] for name in tables] if several else [provenance]:
        for key in ("measured_by", "measured_when", "measured_with", "licence"):
            assert part[key]


def test_the_provenance_counts_the_rows_of_every_table() -> None:
    """Neither a row that is expressed nor one that is not can be lost."""
    for name in (*TRAINING_FILES, "unexpressed.csv"):
        provenance = tomllib.loads((DATA / name).with_suffix(".toml").read_text("utf-8"))
        counted = Counter(row["table"] for row in rows_of(name))
        assert {table: part["rows"] for table, part in provenance.items()} == counted


def test_every_published_row_is_expressed_or_listed() -> None:
    """Every collected row of training is predicted or has a reason."""
    files = *TRAINING_FILES, "unexpressed.csv"
    counts = Counter(row["table"] for name in files for row in rows_of(name))
    counts["best product"] += len(rows_of("best_product.csv"))
    assert counts == {**PUBLISHED, "best product": BEST_PRODUCTS}


def test_every_row_left_out_has_a_reason_and_a_name_of_its_own() -> None:
    """Nothing is left out silently."""
    rows = [row for group in GROUPS for row in unexpressed_rows(group)]
    assert len(rows) == len(rows_of("unexpressed.csv"))
    assert all(row.reason for row in rows)
    assert len({(row.table, row.case) for row in rows}) == len(rows)


def test_columns_of_training_runs_are_options() -> None:
    """A column that no run reads would be dropped silently; `attention` is for the reader."""
    known = {*(each.name for each in fields(Training)), *OPEN_COLUMNS.values(), *_NOT_OPTIONS}
    known |= {"model", "accelerator", "cluster", "pipeline", "data", "tensor", "software"}
    known |= {"lora_rank", "lora_targets", "fusion", "attention"}
    assert {path.name for path in DATA.glob("training*.csv")} == set(TRAINING_FILES)
    assert all(set(row) <= known for name in TRAINING_FILES for row in rows_of(name))


def test_options_of_training_runs_are_known_words() -> None:
    """Megatron-LM's own data parallelism of 2021 and 2022 overlaps nothing; `all` is stated."""
    for row in rows_of("training.csv"):
        software = SOFTWARE[row["software"]]  # type: ignore[index]
        assert row["optimizer"] in ("", *OPTIMIZERS)
        assert row["trust"].partition(":")[0] in ("high", "medium", "low")
        assert row["source"]
        of_torch = row["attention"] in ("flash-2", "not stated")  # the default of torch
        assert (software.attention_kernel == "fa2") == of_torch
        if row["table"] in ("mlperf", "megatron-bridge"):
            # Their configurations overlap tensor-parallel collectives, or turn that off.
            assert row["overlap"] == "" or (row["overlap"], int(row["tensor"]) > 1) == ("all", True)
            continue
        old = row["table"] in ("korthikanti", "narayanan") and row["case"] not in ("1.7B", "7.5B")
        stated = "all" if "asynchronous" in row["case"] else ""
        assert row["overlap"] == ("none" if old else stated)
        # What equals the software's is not said again.
        assert software.optimizer != row["optimizer"] and software.overlap != row["overlap"]
    cases = {row["case"] for row in rows_of("training.csv")}
    assert all(row["repeats"] in {"", *cases} for row in rows_of("training.csv"))


def test_no_row_is_left_out_for_want_of_a_preset() -> None:
    """Every chip of a published row has one; a new table would name it in its reason."""
    assert not [row for row in rows_of("unexpressed.csv") if "no preset" in row["reason"]]
    assert {row["accelerator"] for row in rows_of("best_product.csv")} <= set(accelerator_presets())


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("layers=96,hidden=12288,heads=96,sequence=2048,vocab=50304", 175e9),
        ("layers=48,hidden=6144,heads=24,sequence=1024,vocab=32768", 22e9),
        ("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336", 8.03e9),
        ("layers=105,hidden=20480,heads=128,sequence=2048,vocab=51200", 529.6e9),
        ("layers=32,hidden=4096,heads=64,head_dim=128,ffn=28672", 15.8e9),
        ("layers=128,hidden=16384,heads=256,head_dim=128,ffn=114688", 997e9),
    ],
)
def test_shapes_have_the_parameters_of_the_models(shape: str, parameters: float) -> None:
    """Shapes agree with the known totals to 1 %."""
    models = {row["model"] for row in rows_of("training.csv") if shape in row["model"]}
    assert models
    for model in models:
        assert load_workload(model).parameters == pytest.approx(parameters, rel=0.01)


def test_bias_has_a_sign_and_repeated_rows_are_not_independent() -> None:
    """Errors of opposite sign cancel in the bias only."""
    rows = (
        ValidationRow("new", 1.0, 1.1),
        ValidationRow("old", 1.0, 0.9, repeats="new"),
    )
    table = ValidationTable("made up", "a100-80", 0.0, "nowhere", rows)
    assert table.bias == pytest.approx(0.0)
    assert table.mean_absolute_error == pytest.approx(0.1)
    assert (len(table.rows), table.independent_rows) == (2, 1)


def test_a_group_holds_its_tables_and_what_is_left_out() -> None:
    """Memory has six tables, two of ratios, and leaves nothing out."""
    memory = validate("memory")
    assert [table.unit for table in memory.tables] == ["B", "B", "B", "B", "ratio", "ratio"]
    assert memory.unexpressed == ()
    left_out = unexpressed_rows("training")
    assert not any("products in" in row.reason for row in left_out)
    assert (
        UnexpressedRow("misc", "llama3-70b fp8 hybrid on 64 H100", "recompute not stated")
        in left_out
    )
