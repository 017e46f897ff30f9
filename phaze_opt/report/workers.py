"""The table of workers."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType

from phaze_opt.report.layout import add_row, grid, sentence, shortened
from phaze_opt.report.words import value_of_axis
from phaze_opt.store.workers import WorkerRecord

_LONGEST_NAME = 16


def workers_table(workers: Iterable[WorkerRecord]) -> RenderableType:
    """List workers, one line each: where they run, on what, since when and until when.

    Below, the designs of their trials.
    """
    table = grid("study", "host", ">process", ">trial", ">since", ">lease", "state", "code", gap=1)
    designs = []
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
            shortened(worker.code or "–", _LONGEST_NAME),
        )
        if worker.params:
            values = ", ".join(value_of_axis(name, value) for name, value in worker.params.items())
            designs.append(sentence(f"trial {worker.trial} of {worker.study}: {values}"))
    return Group(table, sentence(""), *designs) if designs else table
