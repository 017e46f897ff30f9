"""Studies of many points in a database: they can be stopped, resumed, shared and watched.

Takes a `phaze_opt.spec.study_spec.StudySpec`. Gives a `study.Study`: an Optuna study with exactly N
complete trials. Its best design (`best_design.BestDesign`) is the first in the order of designs,
and is compared with baselines.

The modules, in the order in which a study uses them:

- `study`: `study.create_study`, `study.load_study` and the study itself.
- `spec_check`: size of the space, feasible share and cost of a spec, before a run.
- `running`: a run, from the baselines and tickets to its end; `processes`: worker processes and
  signals; `lasting_executors`: executors whose processes may be lost, such as a dask cluster;
  `worker`: a worker claims tickets, asks a sampler (`samplers`), evaluates and tells;
  `watching`: passes trials of a worker to the dashboard.
- `past_trials`: finished trials as points and costs, which a worker begins with.
- `guided`: the points of the sampler ``bound``, also for a study of Optuna alone.
- `objective`: from a point to its metrics; `trials`: the metrics of a trial, written and read.
- `baselines`: known accelerators, each at its best.
- `best_design`: the best design with its evaluations; `proving`: solves its open passes at the end
  of a run; `neighbourhood`: the designs one step away from it on each axis.
- `standing`: trials counted, the best one and the front, by the database; `trial_book`: the same
  for a page that stays open, which reads only trials that changed.
- `summary`: the state of a study; `pareto`, `trial_choice`, `difference`: fronts, lists of trials,
  two studies side by side.

Where a rule stands:

- best of the solved options of an evaluation -> `objective.best_of_runs`
- inputs of an evaluation, and its key in the cache -> `objective.evaluation_key`
- Pareto front of trials -> `pareto.front`
- first trials (the baselines in the space) -> `running.baseline_params`
- seed of a trial's sampler -> `samplers.by_name.Samplers.for_ticket`
- best bound first, and proof of the best -> `samplers.bound.BestBoundFirst`
- hill climbing -> `samplers.climb`; CMA-ES -> `samplers.evolution`; every point once ->
  `samplers.brute_force`
- state of a study (running, stopping, stopped, done, proven) -> `summary._state`
"""
