import pytest

from phaze_opt.codec import data_rows, data_table
from phaze_opt.validation.collectives import validate_collectives
from phaze_opt.validation.measured import ValidationTable


@pytest.fixture(scope="module")
def tables() -> dict[tuple[str, str], ValidationTable]:
    """Return the tables by name and network."""
    return {(table.name, table.accelerator): table for table in validate_collectives()}


@pytest.mark.parametrize(
    ("cluster", "limit"),
    [
        ("dgx-a100", 0.10),
        ("dgx-h100", 0.10),
        ("dgx-b200", 0.13),
        ("nvl72", 0.10),
        ("tpu7x-mesh", 0.05),
    ],
)
def test_collectives_are_within_a_tenth(
    tables: dict[tuple[str, str], ValidationTable], cluster: str, limit: float
) -> None:
    """From 1 MB up; B200s within 13 %. The bias of either table is at most 8 %."""
    assert tables["collectives from 1 MB", cluster].mean_absolute_error <= limit
    for name in ("collectives from 1 MB", "collectives"):
        rows = tables[name, cluster].rows
        assert abs(sum(row.error for row in rows) / len(rows)) <= 0.08


def test_every_row_is_shown_with_its_source(
    tables: dict[tuple[str, str], ValidationTable],
) -> None:
    """All 260 rows stand in a table, and each table names file and commit."""
    everything = [table for (name, _), table in tables.items() if name == "collectives"]
    assert sum(len(table.rows) for table in everything) == 260
    for table in tables.values():
        assert "095f58a51" in table.source
        assert "nccl_perf.parquet" in table.source or "all_gather.md" in table.source


def test_the_data_say_who_measured_them() -> None:
    """Beside the rows stand who, when, with what, and under which licence."""
    provenance = data_table("validation", "collectives_chips.toml")
    clusters = {row["cluster"] for row in data_rows("validation", "collectives_chips.csv")}
    assert provenance.pop("source").keys() == clusters
    assert provenance.keys() == {
        "what",
        "measured_by",
        "measured_when",
        "measured_with",
        "versions",
        "licence",
        "columns",
    }
    assert all(isinstance(text, str) and text for text in provenance.values())
