"""Measured exchanges of tokens among the devices of experts."""

import pytest

from phaze_opt.codec import data_rows, data_table
from phaze_opt.validation.expert_exchanges import validate_expert_exchanges
from phaze_opt.validation.measured import ValidationTable


@pytest.fixture(scope="module")
def tables() -> dict[tuple[str, str], ValidationTable]:
    """Return the tables by name and network."""
    return {(table.name, table.accelerator): table for table in validate_expert_exchanges()}


def test_every_measured_row_is_in_one_table(
    tables: dict[tuple[str, str], ValidationTable],
) -> None:
    """No row is left out, and the data say who measured them."""
    files = "expert_exchanges", "exchange_rates", "all_to_all"
    measured = sum(len(data_rows("validation", f"{name}.csv")) for name in files)
    assert sum(len(table.rows) for table in tables.values()) == measured == 534 + 51 + 281
    for name in files:
        assert {"what", "measured_by", "measured_with", "licence"} <= set(
            data_table("validation", f"{name}.toml")
        )


@pytest.mark.parametrize(
    ("chip", "cluster", "greatest"),
    # Half of the rows of the H100 and the B200, to which nothing is fitted; none of the B300.
    [("h100", "dgx-h100", 0.06), ("b200", "dgx-b200", 0.08), ("b300", "dgx-b200", 0.10)],
)
def test_unseen_rows_of_one_node_are_met(
    tables: dict[tuple[str, str], ValidationTable], chip: str, cluster: str, greatest: float
) -> None:
    """Dispatch and combine together."""
    assert tables[f"dispatch and combine, {chip}", cluster].mean_absolute_error <= greatest


@pytest.mark.parametrize(
    ("dispatcher", "where", "greatest"),
    # Those of HybridEP on one node are its fit; nothing else here is fitted to.
    [
        ("deepep", "one node", 0.05),
        ("hybridep", "one node", 0.03),
        ("deepep", "2 nodes", 0.11),
        ("hybridep", "2 nodes", 0.2),
    ],
)
def test_rates_by_multiprocessors_are_met(
    tables: dict[tuple[str, str], ValidationTable], dispatcher: str, where: str, greatest: float
) -> None:
    """For tokens of 7,168 and of 2,048 elements, from 4 to 32 multiprocessors."""
    table = tables[f"{dispatcher} by multiprocessors, {where}", "dgx-h100"]
    assert table.mean_absolute_error <= greatest


def test_eight_nodes_are_met_where_their_network_does_not_hold_them_up(
    tables: dict[tuple[str, str], ValidationTable],
) -> None:
    """With four multiprocessors, and in combines of up to 4,096 tokens; others are too fast."""
    rows = tables["dispatch and combine, 8 nodes", "dgx-h100"].rows
    few = [row.error for row in rows if " 4 multiprocessors" in row.case]
    assert few and sum(map(abs, few)) / len(few) <= 0.06
    assert max(row.error for row in rows) <= 0.06


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "dgx-b200"])
def test_all_to_alls_are_met(tables: dict[tuple[str, str], ValidationTable], cluster: str) -> None:
    """From 1 MB, with the constants of the network."""
    assert tables["all-to-all from 1 MB", cluster].mean_absolute_error <= 0.12
