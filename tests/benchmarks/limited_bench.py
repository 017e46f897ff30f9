"""How near the default sampler comes to the certified optimum in a few trials, under limits.

``python -m tests.benchmarks.limited_bench [NAME ...]`` takes the specs of ``limited/``; a row has
the seconds of the certificate, and the median over the seeds of the first trials.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from phaze_opt.spec.study_spec import StudySpec, read_spec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.enumerating import enumerate_study

SPECS = Path(__file__).parent / "limited"
TRIALS, SEEDS = 5, 5


def certified(spec: StudySpec) -> tuple[float, float, int, int]:
    """Return the best value of a space, the seconds of its proof, evaluated points and points."""
    with tempfile.TemporaryDirectory() as folder:
        study = create_study(spec, f"sqlite:///{folder}/a.db")
        started_s = time.process_time()
        found = enumerate_study(study, top=1, workers=1)
        took_s = time.process_time() - started_s
        return found.top[0].metrics.value, took_s, found.evaluated, found.points


def sampled(spec: StudySpec, seed: int) -> float:
    """Return the best value of the first trials of the default sampler; 0 if none is feasible."""
    search = replace(spec.search, seed=seed, trials=TRIALS)
    with tempfile.TemporaryDirectory() as folder:
        study = create_study(replace(spec, search=search), f"sqlite:///{folder}/a.db")
        study.run()
        best = study.best()
        return 0.0 if best is None else best.metrics.value


def main(names: list[str]) -> None:
    """Print a row for each spec."""
    print(f"{'spec':12} {'sampler':8} {'points':>8} {'proof':>8} {'evaluated':>9} {'distance':>9}")
    for path in sorted(SPECS.glob("*.toml")):
        spec = read_spec(path)
        if names and spec.name not in names:
            continue
        optimum, took_s, evaluated, points = certified(spec)
        (kind, *_) = spec.objective_kinds
        merits = [sampled(spec, seed) for seed in range(SEEDS)]
        share = statistics.median(
            kind.merit(value) / kind.merit(optimum) if value else 0.0 for value in merits
        )
        print(
            f"{spec.name:12} {spec.sampler:8} {points:8,} {took_s:6.1f} s {evaluated:9,}"
            f" {1.0 - share:9.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
