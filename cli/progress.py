"""The progress of a run: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from phaze_opt.units import format_number

if TYPE_CHECKING:
    from phaze_opt.study.running import Progress
    from phaze_opt.study.study import Study
    from phaze_opt.whole_space.exhaustive import EnumerationProgress

_WATCH_S = 1.0


def watch_study(study: Study) -> None:
    """Show the state of a study anew every second until it is done or Ctrl-C."""
    from rich.live import Live

    from phaze_opt.report.studies import summary_table

    summary = study.summary()
    with Live(summary_table(summary), auto_refresh=False) as live:
        while summary.state not in ("done", "proven"):
            time.sleep(_WATCH_S)
            summary = study.summary()
            live.update(summary_table(summary), refresh=True)


@contextmanager
def enumeration_progress() -> Iterator[Callable[[EnumerationProgress], None]]:
    """Yield the function that shows an enumeration's progress on stderr."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    levels = ("boxes", "chips", "evaluations")
    started_s: dict[str, float] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(
        *columns,
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
    ) as bar:
        tasks = {level: bar.add_task(level, total=None, left="") for level in levels}

        def show(progress: EnumerationProgress) -> None:
            spent_s = time.monotonic() - started_s.setdefault(progress.level, time.monotonic())
            left = ""
            if 0 < progress.done < progress.total:
                left_s = spent_s / progress.done * (progress.total - progress.done)
                left = f"about {left_s:.0f} s left"
            total = progress.total or None
            bar.update(tasks[progress.level], completed=progress.done, total=total, left=left)

        yield show


@contextmanager
def steps_progress(steps: int) -> Iterator[Callable[[int, str], None]]:
    """Yield the function that shows on stderr which of some long steps is done."""
    if not sys.stderr.isatty():
        yield lambda done, words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    words_column = TextColumn("{task.description}")
    with Bar(*columns, words_column, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=steps)
        yield lambda done, words: bar.update(task, completed=done, description=words)


@contextmanager
def run_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield the function that shows a run's progress on stderr: best value, rate, time left."""
    if not sys.stderr.isatty():
        from phaze_opt.study.running import ignore_progress

        yield ignore_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    started_s = time.monotonic()
    before: list[int] = []
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("trials", total=None, words="baselines")

        def show(progress: Progress) -> None:
            done = progress.counts.done
            before.append(done)
            rate = (done - before[0]) / max(time.monotonic() - started_s, 1e-9)
            words = ""
            if progress.best_value is not None:
                words = f"best {format_number(progress.best_value)} {progress.unit}"
            if rate > 0:
                left_s = (progress.total - done) / rate
                rates = f"{rate:.2g} trials/s, {left_s:.0f} s left"
                words = f"{words}, {rates}" if words else rates
            bar.update(task, total=progress.total, completed=done, words=words)

        yield show
