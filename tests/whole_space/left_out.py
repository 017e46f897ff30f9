"""Evaluates random points that an enumeration left out: none may be of the top.

``python -m tests.whole_space.left_out SPEC [--points 1000] [--top 20] [--seed 0]``

The points are drawn from the allowed chips of the whole space, and each is evaluated. A point that
is better than its bound, or that comes before the last design of the top, is wrong: the exit code
is then 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import enumerate_study
from studies.left_out import left_out


def main(arguments: list[str]) -> int:
    """Enumerate a space, and evaluate points that it left out."""
    program = "python -m tests.whole_space.left_out"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options: Any = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="phaze-left-out-") as folder:
        study = create_study(read_spec(options.spec), f"sqlite:///{folder}/a.db")
        found = enumerate_study(study, top=options.top)
        print(f"{found.points:,} points, {found.evaluated:,} evaluated, {found.status}", flush=True)
        top = [DesignPoint(design.point) for design in found.top]
        own = left_out(Engine(study, study.evaluator), top, options.points, options.seed)
    wrong = own.better + own.above
    print(f"{own.designs:,} points left out, {own.feasible:,} feasible, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
