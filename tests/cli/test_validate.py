"""``phaze-opt validate``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from phaze_opt.validation import registry
from tests.cli.conftest import Phaze

KEYS = {
    *("table", "accelerator", "call_overhead_s", "mean_absolute_error", "bias", "worst_error"),
    *("independent_rows", "source", "unit", "rows", "unexpressed"),
}
ROW_KEYS = {
    *("case", "measured", "predicted", "error", "assumed", "trust", "source", "independent"),
    *("repeats", "parts_s", "bound", "factor_by_part", "predicted_range", "closest"),
}


@pytest.fixture(scope="module", autouse=True)
def predicted_once() -> Iterator[None]:
    """Predict the rows of a group once: commands show the same tables in several ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "validate", functools.cache(registry.validate))
        yield


def test_measured_rows_are_shown(phaze: Phaze) -> None:
    """The summary and, on request, every row are printed."""
    tables = phaze("validate", "operators", "--json").json
    assert {("gemm", "a100-80"), ("softmax", "mi210")} <= {
        (table["table"], table["accelerator"]) for table in tables
    }
    assert "softmax 4096×32" in phaze("validate", "operators", "--rows").out
    assert "softmax 4096×32" not in phaze("validate", "operators").out


def test_tables_that_say_little_are_shown_on_request(phaze: Phaze) -> None:
    """One row by luck, and an older table that a better one contradicts; JSON has all of them."""
    ran, every = phaze("validate", "operators"), phaze("validate", "operators", "--all")
    assert "best product" in every.out and "best product" not in ran.out
    assert "--all shows them" in ran.err and "--all" not in every.err
    assert "gemm 8192×64×64" in phaze("validate", "operators", "--all", "--rows").out


def test_the_keys_of_json_are_stable(phaze: Phaze) -> None:
    """Every table and row has all keys, also a table of which nothing is expressed."""
    tables = phaze("validate", "training", "--json").json
    assert all(table.keys() == KEYS for table in tables)
    assert all(row.keys() == ROW_KEYS for table in tables for row in table["rows"])
    by_name = {table["table"]: table for table in tables}
    bridge = [table for table in tables if table["table"] == "megatron-bridge"]
    assert sum(len(table["unexpressed"]) for table in bridge) == 3
    assert by_name["misc"]["mean_absolute_error"] is None
    for table in (by_name["mlperf"], bridge[0]):
        assert table["rows"] and table["unexpressed"]


def test_rows_left_out_are_listed_with_the_reason(phaze: Phaze) -> None:
    """On request each has a line; otherwise a note counts them."""
    ran = phaze("validate", "training")
    assert "cannot be expressed" in ran.err and "block times include" not in ran.out
    assert "block times include" in phaze("validate", "training", "--rows").out


def test_a_group_without_tables_is_empty(phaze: Phaze) -> None:
    """It prints an empty list, and has nothing to plot."""
    for group in (name for name in registry.GROUPS if not registry.PREDICTORS[name]):
        assert phaze("validate", group, "--json").json == []
        assert phaze("validate", group, "--plot", "plot.html").code == 2


def test_a_plot_is_written(phaze: Phaze) -> None:
    """The file is named on standard error."""
    ran = phaze("validate", "operators", "--plot", "plot.html")
    assert ran.code == 0 and "plot.html" in ran.err
    assert Path("plot.html").stat().st_size > 100_000


def test_own_runs_are_shown(phaze: Phaze, tmp_path: Path) -> None:
    """Each row with its range, and what would explain the rest; a group must be said."""
    runs = tmp_path / "runs.csv"
    runs.write_text(
        "model,accelerator,cluster,gpus,tp,global_batch,software,measured_s\n"
        "bert-large,h100,dgx-h100,8,1,256,megatron,10\n"
    )
    shown = phaze("validate", "training", "--csv", str(runs))
    assert shown.code == 0 and "range" in shown.out and "closest" in shown.out
    (table,) = phaze("validate", "training", "--csv", str(runs), "--json").json
    assert table.keys() == KEYS and table["rows"][0].keys() == ROW_KEYS
    trace = phaze("validate", "trace", "t.json", "--accelerator", "h100", "--csv", str(runs))
    assert trace.code == 2 and "no --csv" in trace.sentence
    refused = phaze("validate", "--csv", str(runs))
    assert (refused.code, refused.out) == (2, "") and "training" in refused.err
    assert phaze("validate", "training", "--csv", str(tmp_path / "none.csv")).code == 3


def test_published_runs_are_counted_by_whether_they_can_be_expressed(phaze: Phaze) -> None:
    """As text and as data, which add up; nothing is predicted, and other questions are refused."""
    counted = phaze("validate", "--expressible", "--json").json
    parts = ("compared", "compared_over_options", "undetermined", "inexpressible")
    for each in (counted, *counted["publications"]):
        assert each["rows"] == sum(each[part] for part in parts)
        assert each["expressible"] == each["rows"] - each["inexpressible"]
    assert counted["rows"] == sum(each["rows"] for each in counted["publications"])
    assert counted["expressible_share"] == counted["expressible"] / counted["rows"]
    assert {each["kind"] for each in counted["reasons"]} == {"program", "publication"}
    shown = phaze("validate", "training", "--expressible").out
    assert f"{counted['expressible']} of {counted['rows']} can be expressed" in shown
    chip = ("--accelerator", "h100")
    for refused in (("memory",), ("--rows",), ("--all",), ("--plot", "plot.html"), chip):
        assert phaze("validate", "--expressible", *refused).code == 2
