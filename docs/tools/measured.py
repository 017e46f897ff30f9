"""Parts of pages that follow from ``phaze-opt validate``: accuracy, and what can be expressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.tools.dataset import columns_table, dataset_table
from docs.tools.every_row import by_kind_table, releases_table
from docs.tools.peers import peer_rows_table, peers_table
from docs.tools.tables import table
from phaze_opt.cost_model_version import COST_MODEL_VERSION
from phaze_opt.report.validation import EXPRESSIBLE_HEAD, KIND_WORDS, expressible_rows
from phaze_opt.units import format_number
from phaze_opt.validation.expressible import count_expressible
from phaze_opt.validation.registry import GROUPS, validate


def accuracy_rows(every: bool = False) -> list[tuple[str, ...]]:
    """Return the summary of ``phaze-opt validate``, a row for each measured table.

    Parameters
    ----------
    every
        Whether tables that say little are there too.
    """
    tables = [table for group in GROUPS for table in validate(group).tables]
    return [
        (
            measured.name,
            measured.accelerator,
            format_number(len(measured.rows)),
            f"{measured.mean_absolute_error:.1%}",
            f"{measured.bias:+.1%}",
            f"{measured.worst_error:+.1%}",
        )
        for measured in tables
        if every or not measured.minor
    ]


ACCURACY_HEAD = ("measured", "on", "rows", "mean abs. error", "bias", "worst")


def accuracy_table() -> str:
    """Write the table of `accuracy_rows`."""
    note = f"By `phaze-opt validate`, cost model {COST_MODEL_VERSION}:\n"
    return note + "\n" + table(ACCURACY_HEAD, accuracy_rows(), "<<>>>>")


def expressible_table() -> str:
    """Write how many published training runs of every table can be expressed."""
    head = tuple(name.removeprefix(">") for name in EXPRESSIBLE_HEAD)
    return table(head, expressible_rows(count_expressible()), "<>>>>>")


def inexpressible_reasons() -> str:
    """Write why training runs are not compared."""
    rows = [
        (each.reason, KIND_WORDS[each.kind], format_number(each.rows))
        for each in count_expressible().reasons
    ]
    return table(("reason", "why", "rows"), rows, "<<>")


PARTS: Mapping[str, Callable[[], str]] = {
    "accuracy-table": accuracy_table,
    "accuracy-by-kind": by_kind_table,
    "accuracy-releases": releases_table,
    "accuracy-peers": peers_table,
    "accuracy-peer-rows": peer_rows_table,
    "dataset-files": dataset_table,
    "dataset-columns": columns_table,
    "expressible-table": expressible_table,
    "inexpressible-reasons": inexpressible_reasons,
}
"""Parts of other pages, which stand there as ``<!-- generated: NAME -->``."""
