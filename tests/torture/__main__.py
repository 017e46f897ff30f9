"""``python -m tests.torture``: every case, in turn, and one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from phaze_opt.compiled import load_all
from tests.torture.case import Case, Tally, run_case
from tests.torture.every_case import CASES


def main(arguments: Sequence[str]) -> int:
    """Run cases, print the table; the exit code is 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, help="a case; may be repeated")
    parser.add_argument("--seconds", type=float, default=1800.0, help="for all cases together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, help="at most, of every case")
    parser.add_argument("--resume", type=Path, help="file of an interrupted run; kept up to date")
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    tallies = _read(options.resume, options.seed)
    # What is compiled once per installation is no part of a try.
    load_all()
    left_s = options.seconds - sum(tally.seconds for tally in tallies.values())
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="phaze-torture-") as folder,
    ):
        warnings.simplefilter("ignore")
        # Captured models are kept for the whole run.
        os.environ.setdefault("PHAZE_CACHE", f"{folder}/cache")
        # Those of servers run as another user.
        Path(folder).chmod(0o755)
        for index, case in enumerate(chosen):
            tally = tallies.setdefault(case.name, Tally())
            shares = sum(one.share for one in chosen[index:])
            most = case.tries if options.tries is None else min(case.tries, options.tries)
            before_s = tally.seconds
            place = Path(folder) / case.name
            place.mkdir()
            run_case(case, tally, options.seed, place, most, left_s * case.share / shares)
            left_s -= tally.seconds - before_s
            for failure in tally.failures:
                print(f"{case.name}, {failure}", file=sys.stderr)
            _write(options.resume, options.seed, tallies)
    print(table(chosen, tallies))
    return 1 if any(tallies[case.name].failed for case in chosen) else 0


def table(cases: Sequence[Case], tallies: dict[str, Tally]) -> str:
    """Return the table in Markdown: what was tried, how often, how often it failed."""
    lines = ["| case | what | tries | failures | s |", "|---|---|---:|---:|---:|"]
    for case in cases:
        tally = tallies[case.name]
        numbers = f"{tally.tries:,} | {tally.failed} | {tally.seconds:.0f}"
        lines.append(f"| {case.name} | {case.title} | {numbers} |")
    return "\n".join(lines)


def _read(path: Path | None, seed: int) -> dict[str, Tally]:
    """Read the tallies of an interrupted run of the same seed."""
    if path is None or not path.exists():
        return {}
    stored = json.loads(path.read_text())
    if stored["seed"] != seed:
        sys.exit(f"{path} holds a run of seed {stored['seed']}.")
    return {name: Tally(**tally) for name, tally in stored["tallies"].items()}


def _write(path: Path | None, seed: int, tallies: dict[str, Tally]) -> None:
    """Write the tallies, whole or not at all."""
    if path is None:
        return
    plain = {"seed": seed, "tallies": {name: asdict(tally) for name, tally in tallies.items()}}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(plain, indent=1))
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
