"""``python -m tests.torture``: every case, some side by side, and one table."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import phaze_opt
from phaze_opt.codec import write_whole
from phaze_opt.compiled import load_all
from tests.migrations import migrations_read_once
from tests.torture.case import Case, Tally
from tests.torture.every_case import CASES
from tests.torture.side_by_side import Plan, interruptible, run_cases

_INTERRUPTED = 130


def main(arguments: Sequence[str], prepare: Callable[[], None]) -> int:
    """Run cases, print the table; the exit code is 1 where anything failed.

    What is done once, as importing and compiling, `prepare` does: it is no part of a try.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, help="a case; may be repeated")
    parser.add_argument("--seconds", type=float, default=1800.0, help="for all cases together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, help="at most, of every case")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="cases at once")
    parser.add_argument("--resume", type=Path, help="file of an interrupted run; kept up to date")
    options = parser.parse_args(arguments)
    if min(options.processes, options.seconds) <= 0:
        parser.error("--processes and --seconds must be above 0")
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    run = Run.read(options.resume, options.seed)
    tallies = {case.name: run.tallies.setdefault(case.name, Tally()) for case in chosen}
    prepare()
    started_s, before_s = time.monotonic(), run.seconds

    def told() -> None:
        run.seconds = before_s + time.monotonic() - started_s
        run.write(options.resume)

    with (
        interruptible(),
        migrations_read_once(),
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="phaze-torture-") as folder,
    ):
        warnings.simplefilter("ignore")
        # Those of servers run as another user.
        Path(folder).chmod(0o755)
        # Captured models are kept for the whole run.
        os.environ.setdefault("PHAZE_CACHE", f"{folder}/cache")
        end_s = started_s + options.seconds - before_s
        plan = Plan(options.seed, Path(folder), end_s, options.processes, options.tries)
        try:
            run_cases(chosen, tallies, plan, told)
        except KeyboardInterrupt:
            print("Interrupted; --resume goes on where a file was given.", file=sys.stderr)
            return _INTERRUPTED
        finally:
            told()
    print(table(chosen, tallies))
    return 1 if any(tally.failed for tally in tallies.values()) else 0


def import_all() -> None:
    """Import all of the program, and load its loops."""
    for module in pkgutil.walk_packages(phaze_opt.__path__, "phaze_opt."):
        importlib.import_module(module.name)
    load_all()
    gc.collect()
    gc.freeze()


def table(cases: Sequence[Case], tallies: Mapping[str, Tally]) -> str:
    """Return the table in Markdown: what was tried, how often, how often it failed."""
    lines = ["| case | what | tries | failures | s |", "|---|---|---:|---:|---:|"]
    for case in cases:
        tally = tallies[case.name]
        numbers = f"{tally.tries:,} | {tally.failed} | {tally.seconds:.0f}"
        lines.append(f"| {case.name} | {case.title} | {numbers} |")
    return "\n".join(lines)


@dataclass
class Run:
    """A run that may be interrupted.

    Attributes
    ----------
    seconds
        Of all its parts so far.
    """

    seed: int
    seconds: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, seed: int) -> Run:
        """Read a run of the same seed; begin one where there is no file."""
        if path is None or not path.exists():
            return cls(seed)
        stored = json.loads(path.read_text())
        if stored["seed"] != seed:
            sys.exit(f"{path} holds a run of seed {stored['seed']}.")
        tallies = {name: Tally(**tally) for name, tally in stored["tallies"].items()}
        return cls(seed, stored["seconds"], tallies)

    def write(self, path: Path | None) -> None:
        """Write the run, whole or not at all."""
        if path is not None:
            write_whole(path, json.dumps(asdict(self), indent=1).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], import_all))
