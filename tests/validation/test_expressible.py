"""Published training runs counted by whether they can be expressed, and why not."""

from __future__ import annotations

import csv
from collections import Counter
from importlib import resources
from pathlib import Path

from phaze_opt.codec import data_table
from phaze_opt.validation.expressible import count_expressible, reasons_of
from phaze_opt.validation.measured import UnexpressedRow, unexpressed_rows

DATA = Path(str(resources.files("phaze_opt"))) / "validation" / "data"
STATED = data_table("validation", "expressible.toml")


def test_every_row_counts_once() -> None:
    """As compared or as left out, but for those that were published before."""
    rows: Counter[str] = Counter()
    for path in DATA.glob("training*.csv"):
        rows.update(row["table"] for row in csv.DictReader(path.read_text("utf-8").splitlines()))
    left_out = Counter(row.table for row in unexpressed_rows("training"))
    counted = {each.table: each for each in count_expressible().publications}
    assert counted.keys() == (rows.keys() | left_out.keys()) - STATED["earlier"].keys()
    for table, each in counted.items():
        assert each.compared + each.compared_over_options == rows[table]
        assert each.undetermined + each.inexpressible == left_out[table]
    total = count_expressible().total()
    assert total.rows == sum(each.rows for each in counted.values())
    assert total.expressible + total.inexpressible == total.rows


def test_what_was_published_before_is_compared_too() -> None:
    """It is not counted here; every stated publication has rows."""
    assert all(year < STATED["first_year"] for year in STATED["earlier"].values())
    text = "".join(path.read_text("utf-8") for path in DATA.glob("training*.csv"))
    assert all(f"\n{table}," in text for table in STATED["earlier"])


def test_reasons_are_of_two_kinds() -> None:
    """A run is undetermined where the publication alone is why; what is open has such words."""
    open_reasons = set(STATED["open"]["reasons"])
    kinds = {each.reason: each.kind for each in count_expressible().reasons}
    every = [row for row in unexpressed_rows("training") if row.table not in STATED["earlier"]]
    assert kinds.keys() == {reason for row in every for reason in reasons_of(row)}
    for reason, kind in kinds.items():
        assert (kind == "publication") == (reason in open_reasons)
        assert kind == "publication" or not ("not stated" in reason or "not named" in reason)
    undetermined = [row for row in every if open_reasons.issuperset(reasons_of(row))]
    assert count_expressible().total().undetermined == len(undetermined)
    counts = Counter(reason for row in every for reason in reasons_of(row))
    assert {each.reason: each.rows for each in count_expressible().reasons} == counts


def test_several_reasons_of_a_row() -> None:
    """They stand between semicolons."""
    row = UnexpressedRow("mlperf", "made up", "chip not named; recompute not stated")
    assert reasons_of(row) == ("chip not named", "recompute not stated")
