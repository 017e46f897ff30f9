"""How soon each sampler comes near the certified optimum, on the spaces of the paper.

Every model is enumerated first. Then each sampler searches with several seeds, in memory, with the
evaluations that all of them share. Each search that is done is kept in a file, so that a run that
was stopped goes on; ``make sampler-bench`` writes the table and the plot of ``studies/README.md``.

    make sampler-bench
    make sampler-bench OPTIONS="--models bert-large --samplers bound,climb --seeds 2 --trials 100"
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import optuna

from phaze_opt.codec import from_json, to_json
from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.spec.sampler_options import SamplerName
from phaze_opt.spec.space import DesignPoint, distributions, point_of
from phaze_opt.spec.study_spec import SearchSpec, read_spec
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.leases import DEFAULT_LEASE_S
from phaze_opt.store.opening import open_storage
from phaze_opt.study.baselines import find_baselines
from phaze_opt.study.guided import best_bound_first
from phaze_opt.study.objective import Objective
from phaze_opt.study.running import baseline_params
from phaze_opt.study.samplers.by_name import Samplers
from phaze_opt.study.study import Study, create_study
from phaze_opt.study.trials import METRICS_KEY, Metrics, metrics_to_plain, trial_cost
from phaze_opt.study.worker import CONSTRAINT_KEY, suggest
from phaze_opt.whole_space.enumerating import enumerate_study
from tests.benchmarks.sampler_report import Search, write_report

STUDIES = Path(__file__).parents[2] / "studies"
FOLDER = Path(".benchmarks") / "samplers"
MODELS = tuple(
    sorted(path.stem for path in (STUDIES / "phaze").glob("*.toml") if path.stem != "common")
)


class Bench:
    """The searches of one model, which share its evaluations.

    Parameters
    ----------
    model
        Name of a file in ``studies/phaze``.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        storage = open_storage(f"sqlite:///{FOLDER / model}.db", create=True)
        spec = read_spec(STUDIES / "phaze" / f"{model}.toml")
        any_search = replace(spec, search=SearchSpec("random"))
        name = f"bench-{COST_MODEL_VERSION}"
        self.study: Study = create_study(any_search, storage, name=name, exist_ok=True)
        started_s = time.monotonic()
        self.optimum = enumerate_study(self.study, top=1, workers=1).top[0].metrics.value
        print(f"{model}: optimum {self.optimum:,.1f}, {time.monotonic() - started_s:.0f} s")
        self._objective = Objective(
            self.study.resolved,
            self.study.workloads(),
            EvaluationCache(storage, "sampler-bench", DEFAULT_LEASE_S),
            ScheduleCache(storage),
        )
        self._metrics: dict[DesignPoint, Metrics] = {}
        assert find_baselines(self.study.resolved, storage)
        self._given = baseline_params(self.study)

    def search(self, sampler: SamplerName, seed: int, trials: int) -> Search:
        """Search once, as a worker does."""
        resolved = self.study.resolved
        space, cost = resolved.spec.space, partial(trial_cost, resolved)
        samplers = Samplers(sampler, seed, distributions(space), cost)
        guide = None
        if sampler == "bound":
            guide = best_bound_first(resolved, self._objective.workloads, (), None, cost)
        study = optuna.create_study(direction="maximize")
        regrets: list[float] = []
        points: set[DesignPoint] = set()
        infeasible, best, ask_s, proven = 0, 0.0, 0.0, False
        for ticket in range(trials):
            started_s = time.process_time()
            given = self._given[ticket] if ticket < len(self._given) else None
            if guide is not None:
                guide.read(study.get_trials(deepcopy=False))
                proven = guide.is_proven
                if proven:
                    break
                given = given or dict(guide.next_points(1)[0])
            study.sampler = samplers.for_ticket(ticket, given)
            trial = study.ask()
            point = point_of(space, suggest(trial, space))
            ask_s += time.process_time() - started_s
            metrics = self._evaluate(point)
            trial.set_user_attr(METRICS_KEY, metrics_to_plain(metrics))
            trial.set_constraint(CONSTRAINT_KEY, metrics.violation)
            study.tell(trial, list(metrics.values))
            points.add(point)
            infeasible += not metrics.feasible
            best = max(best, metrics.value if metrics.feasible else 0.0)
            regrets.append(1.0 - best / self.optimum)
        return Search(
            model=self.model,
            sampler=sampler,
            seed=seed,
            trials=trials,
            baselines=len(self._given),
            regrets=tuple(regrets),
            infeasible=infeasible,
            duplicates=len(regrets) - len(points),
            is_proven=proven,
            ask_s=ask_s,
        )

    def _evaluate(self, point: DesignPoint) -> Metrics:
        """Evaluate a point, once for all searches."""
        if point not in self._metrics:
            self._metrics[point] = self._objective(point)
        return self._metrics[point]


def search_all(
    models: Sequence[str], samplers: Sequence[SamplerName], seeds: int, trials: int
) -> None:
    """Run all searches that are not kept yet, and keep them."""
    for model in models:
        bench: Bench | None = None
        for sampler in samplers:
            # What follows from the bounds alone is the same for every seed.
            for seed in range(1 if sampler == "bound" else seeds):
                path = FOLDER / f"{COST_MODEL_VERSION}-{model}-{sampler}-{seed}-{trials}.json"
                if not path.exists():
                    bench = bench or Bench(model)
                    found = bench.search(sampler, seed, trials)
                    path.write_bytes(to_json(found))
                    print(f"{model} {sampler} {seed}: {found.regrets[-1]:.3%}")


def kept(trials: int) -> list[Search]:
    """Return all searches of this cost model that were ever run with so many trials."""
    paths = sorted(FOLDER.glob(f"{COST_MODEL_VERSION}-*-{trials}.json"))
    return [from_json(path.read_bytes(), Search, str(path)) for path in paths]


def main() -> None:
    """Run the searches that the command line names, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--samplers", default=",".join(get_args(SamplerName)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    FOLDER.mkdir(parents=True, exist_ok=True)
    models, samplers = options.models.split(","), options.samplers.split(",")
    search_all(models, samplers, options.seeds, options.trials)
    done = kept(options.trials)
    write_report(done, STUDIES / "README.md", STUDIES / "samplers.svg")


if __name__ == "__main__":
    main()
