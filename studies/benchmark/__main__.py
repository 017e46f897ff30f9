"""Search the benchmark with every sampler and write what comes of it: ``make benchmark``.

With ``--tables`` the tables are computed first, with the cost model: minutes for each. They must be
those of the version of the benchmark, unless that is raised. The page and its picture belong to the
problems and samplers that are named, by default to all.
"""

from __future__ import annotations

from pathlib import Path

import optuna

from phaze_opt.codec import write_whole
from studies.benchmark.page import PICTURE, page, picture
from studies.benchmark.problem import DATA, load, names
from studies.benchmark.searches import BOUND, CLIMB, SAMPLERS, Budget, search_all
from studies.benchmark.tables import SPECS, write_table
from studies.run_options import run_parser
from studies.work import Work


def main() -> None:
    """Compute, search and write what is asked for."""
    parser = run_parser("benchmark", __doc__, Path("build/benchmark"), Path(__file__).parent)
    known = sorted(path.stem for path in SPECS.glob("*.toml"))
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="problems")
    searchers = [BOUND, CLIMB, *SAMPLERS]
    parser.add_argument("--samplers", nargs="+", choices=searchers, default=searchers)
    parser.add_argument("--seeds", type=int, default=20, help="of every sampler: 20")
    parser.add_argument("--trials", type=int, default=200, help="of every search: 200")
    parser.add_argument("--tables", action="store_true", help="compute the tables too")
    options = parser.parse_args()
    if min(options.seeds, options.trials) < 1:
        parser.error("--seeds and --trials must be at least 1.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    work = Work(options.work, options.workers)
    for name in options.only if options.tables else ():
        write_table(work, SPECS / f"{name}.toml", DATA)
    problems = [load(name) for name in names() if name in options.only]
    if not problems:
        parser.error(f"{options.only[0]} has no table yet; --tables computes it.")
    budget = Budget(options.seeds, options.trials)
    searches = [
        search_all(work, problem, sampler, budget)
        for problem in problems
        for sampler in options.samplers
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    write_whole(options.output / PICTURE, picture(problems, searches).encode())
    write_whole(options.output / "RESULTS.md", page(problems, searches).encode())


if __name__ == "__main__":
    main()
