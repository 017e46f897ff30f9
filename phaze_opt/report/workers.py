"""The table of workers."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from phaze_opt.report.layout import add_row, grid, shortened
from phaze_opt.search.store.workers import WorkerRecord

_LONGEST_NAME = 16


def workers_table(workers: Iterable[WorkerRecord]) -> Table:
    """List workers, one line each: where they run, on what, since when and until when."""
    table = grid("study", "host", ">process", ">trial", ">since", ">lease", "state", gap=1)
    for worker in workers:
        add_row(
            table,
            shortened(worker.study, _LONGEST_NAME),
            shortened(worker.host or "–", _LONGEST_NAME),
            "–" if worker.process is None else str(worker.process),
            "–" if worker.trial is None else str(worker.trial),
            "–" if worker.since_s is None else f"{worker.since_s:.0f} s ago",
            "–" if worker.lease_left_s is None else f"{worker.lease_left_s:.0f} s left",
            worker.state,
        )
    return table
