"""Evaluates random points that an enumeration left out: none may be of the top.

``python -m tests.whole_space.left_out SPEC [--points 1000] [--top 20] [--seed 0]``

The points are drawn from the allowed chips of the whole space, and each is evaluated. A point that
is better than its bound, or that comes before the last design of the top, is printed; the exit code
is then 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import enumerate_study


def main(arguments: list[str]) -> int:
    """Enumerate a space, and evaluate points that it left out."""
    program = "python -m tests.whole_space.left_out"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options: Any = parser.parse_args(arguments)
    generator, wrong, feasible, left_out = random.Random(options.seed), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="phaze-left-out-") as folder:
        study = create_study(read_spec(options.spec), f"sqlite:///{folder}/a.db")
        found = enumerate_study(study, top=options.top)
        print(f"{found.points:,} points, {found.evaluated:,} evaluated, {found.status}", flush=True)
        engine = Engine(study, study.evaluator)
        grid, best = engine.grid, {design.point for design in found.top}
        last = found.top[-1]
        worst: Rank = last.metrics.rank(study.resolved, DesignPoint(last.point))
        while left_out < options.points:
            place = generator.randrange(grid.points)
            option, size, row = (int(at) for at in np.unravel_index(place, grid.shape))
            point = grid.point(option, size, row)
            if point.values in best:
                continue
            left_out += 1
            (metrics,) = engine.evaluate([point])
            if not metrics.feasible:
                continue
            feasible += 1
            (bounds,) = bound_parts(grid, engine.rule, [SpacePart(option, ((row, row + 1),))])
            above = engine.rule.bounded.merit(metrics.value) > bounds[size, 0]
            if above or metrics.rank(study.resolved, point).key < worst.key:
                wrong += 1
                print(f"{dict(point.values)}: {metrics.value:.6g}", flush=True)
    print(f"{left_out:,} points left out, {feasible:,} feasible, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
