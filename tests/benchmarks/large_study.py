"""Commands on a study of many trials: processor time, clock and memory of each.

    python -m tests.benchmarks.large_study --trials 100000 --file /tmp/large.db

A real study is run for a few trials; the rest are copies of their rows, with other parameters and
values. The file is kept, and used again if it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, insert, select

import phaze_opt.study.worker as worker_module
from phaze_opt.report.dashboard import Pages
from phaze_opt.report.publishing import Publisher
from phaze_opt.spec.space import distributions
from phaze_opt.spec.study_spec import SearchSpec, read_spec
from phaze_opt.store.opening import open_storage
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.study import create_study, load_study
from phaze_opt.study.trials import METRICS_KEY

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"
REAL_TRIALS = 60
COMMAND = ("-c", "from phaze_opt.cli.main import run; run()", "study")
_AT_ONCE = 5_000


def enlarge(study: StoredStudy, total: int, seed: int = 0) -> None:
    """Copy the trials and tickets of a finished study until it has ``total`` of each.

    A copy has random parameters and a value that is up to a tenth smaller. Its rows are written as
    they are, without what the program writes beside them when it runs a trial.
    """
    rng, axes = random.Random(seed), distributions(study.resolved.spec.space)
    spans = {name: _span(axis) for name, axis in axes.items()}
    tables, study_id = MetaData(), study.optuna_id
    with study.storage.writing() as session:
        tables.reflect(session.connection())
        trials, tickets = tables.tables["trials"], tables.tables["phaze_ticket"]
        found = [dict(row) for row in session.execute(select(trials)).mappings()]
        own = sorted((t for t in found if t["study_id"] == study_id), key=lambda t: t["number"])
        first = max(trial["trial_id"] for trial in found) + 1 - len(own)
        held = select(tickets).where(tickets.c.study_uid == study.uid).limit(1)
        ticket = dict(session.execute(held).mappings().one())
        content: dict[str, defaultdict[int, list[dict[str, Any]]]] = {}
        for name, table in tables.tables.items():
            if name.startswith("trial_") and "trial_id" in table.c:
                rows = content[name] = defaultdict(list)
                (key,) = table.primary_key
                for found_row in session.execute(select(table)).mappings():
                    kept = {k: v for k, v in found_row.items() if k != key.name}
                    rows[kept["trial_id"]].append(kept)
        for start in range(len(own), total, _AT_ONCE):
            new: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for number in range(start, min(total, start + _AT_ONCE)):
                model, share = rng.choice(own), 1.0 - 0.1 * rng.random()
                took = timedelta(seconds=number)
                times = {k: model[k] + took for k in ("datetime_start", "datetime_complete")}
                row = {**model, **times, "number": number, "trial_id": first + number}
                new["trials"].append(row)
                new["phaze_ticket"].append({**ticket, "k": number, "trial_number": number})
                for name, rows in content.items():
                    for each in rows[model["trial_id"]]:
                        changed = _changed(each, share, spans, rng)
                        new[name].append({**changed, "trial_id": first + number})
            for name, rows_of_table in new.items():
                session.connection().execute(insert(tables.tables[name]), rows_of_table)


def _span(axis: Any) -> tuple[float, float, float]:
    """Return the first and the last value of an axis, and the step, as Optuna stores them."""
    choices = getattr(axis, "choices", None)
    if choices:
        return 0.0, len(choices) - 1.0, 1.0
    return float(axis.low), float(axis.high), float(axis.step)


def _changed(row: dict[str, Any], share: float, spans: Any, rng: random.Random) -> dict[str, Any]:
    """Return a row of a trial with another parameter, or with smaller values."""
    if "param_name" in row:
        low, high, step = spans[row["param_name"]]
        return {**row, "param_value": low + step * rng.randint(0, round((high - low) / step))}
    if row.get("objective") == 0 and row["value"] > 0:
        return {**row, "value": row["value"] * share}
    if row.get("key") == METRICS_KEY:
        metrics = json.loads(row["value_json"])
        if metrics["feasible"]:
            metrics["values"][0] *= share
        return {**row, "value_json": json.dumps(metrics)}
    return row


def make(path: Path, trials: int) -> str:
    """Make the study in a file, unless it is there, and return its URL."""
    url = f"sqlite:///{path}"
    if not path.exists():
        spec = replace(read_spec(QUICKSTART), search=SearchSpec("random", REAL_TRIALS, 0))
        study = create_study(spec, open_storage(url, create=True))
        study.run(show=Publisher)
        enlarge(study, trials)
        study.office().set_target(trials)
        study.storage.close()
    return url


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Print what a piece of work takes in this process."""
    began, began_s = time.process_time(), time.monotonic()
    try:
        yield
    finally:
        cpu_s, clock_s = time.process_time() - began, time.monotonic() - began_s
        print(f"{name:40} {cpu_s:8.3f} s CPU {clock_s:8.3f} s", flush=True)


def command(url: str, *arguments: str) -> None:
    """Run a command, and print what it takes."""
    call = [sys.executable, *COMMAND, *arguments, "--storage", url]
    began_s = time.monotonic()
    with subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    cpu_s, clock_s = used.ru_utime + used.ru_stime, time.monotonic() - began_s
    most_mb = used.ru_maxrss / 1024
    print(f"{' '.join(arguments):40} {cpu_s:8.3f} s CPU {clock_s:8.3f} s {most_mb:6.0f} MB")


def poll(url: str) -> None:
    """Ask for the state of the study's page: the first time, again, and after another trial."""
    pages = Pages(open_storage(url))

    def get(path: str, query: str = "") -> bytes:
        answer = pages({"PATH_INFO": path, "QUERY_STRING": query}, lambda *rest: None)
        return b"".join(answer)

    key = ""
    for name in ("page", "page again"):
        with measured(name):
            get("/study/quickstart")
    for name in ("poll, new key", "poll, new key again"):
        with measured(name):
            key = json.loads(get("/state/quickstart"))["key"]
    with measured("poll, nothing changed"):
        get("/state/quickstart", f"key={key}")
    study = load_study("quickstart", open_storage(url))
    for name in ("poll, one more trial", "poll, one more trial again"):
        enlarge(study, study.office().counts().done + 1)
        with measured(name):
            get("/state/quickstart", f"key={key}")


def start(url: str) -> None:
    """Start runs of several samplers, until a first trial is sampled, and end each there."""
    worker_class: Any = worker_module.Worker
    ask = worker_class._ask

    def first(worker: Any, ticket: Any) -> Any:
        trial = ask(worker, ticket)
        worker_module.suggest(trial, worker.resolved.spec.space)
        worker._close(trial.number)
        worker.office.give_back(ticket)
        raise _AskedError

    # The last gives its ticket a point, which other samplers would have to take.
    for sampler in ("random", "climb", "tpe", "bound"):
        study = load_study("quickstart", open_storage(url))
        spec = study.resolved.spec
        asking = replace(spec, search=replace(spec.search, sampler=sampler))
        study.resolved = replace(study.resolved, spec=asking)
        worker_class._ask = first
        try:
            with measured(f"run until its first trial, {sampler}"), suppress(_AskedError):
                study.run(study.office().counts().done + 1, show=Publisher)
        finally:
            worker_class._ask = ask


class _AskedError(BaseException):
    """The first trial of a run was asked for."""


COMMANDS = (
    ("show", "quickstart", "--json"),
    ("ls", "--json"),
    ("best", "quickstart", "--json"),
    ("trials", "quickstart", "--sort=-value", "--limit=10"),
    ("trials", "quickstart", "--json"),
)


def main(arguments: Sequence[str]) -> None:
    """Measure all commands, or those whose first word is named, and the page and the start."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("only", nargs="*", help="show, ls, best, trials, poll, start")
    options = parser.parse_args(arguments)
    url, only = make(options.file, options.trials), options.only
    for words in COMMANDS:
        if not only or words[0] in only:
            command(url, *words)
    for work in (poll, start):
        if not only or work.__name__ in only:
            work(url)


if __name__ == "__main__":
    main(sys.argv[1:])
