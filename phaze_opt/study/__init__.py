"""Studies of many points, in a database: they can be stopped, resumed, shared and watched.

Takes a `phaze_opt.spec.study_spec.StudySpec`. Gives a `study.Study`: an Optuna study with exactly N
complete trials, whose best design (`best_design.BestDesign`) is found by one order of designs and
compared with baselines.

The way of a study through the room:

- `study`: `study.create_study`, `study.load_study` and the study itself.
- `spec_check`: what a spec means before it is run.
- `running`: a run, from the baselines and tickets to its end; `processes`: worker processes and
  signals; `worker`: one worker, which claims tickets, asks a sampler (`samplers`), evaluates and
  tells; `watching`: how workers show their trials to people.
- `guided`: the points of the sampler ``bound``, also for a study of Optuna alone.
- `objective`: from a point to its metrics; `trials`: the metrics of a trial, written and read.
- `baselines`: known accelerators, each at its best.
- `best_design`: the best design with all that is known of it; `proving`: at the end of a run, the
  passes of it that the search left open; `neighbourhood`: what one step on each axis brings.
- `summary`: the state of a study; `pareto`, `trial_choice`, `difference`: fronts, lists of trials,
  two studies side by side.

Where a rule stands:

- best of the options that every evaluation solves -> `objective.best_of_runs`
- inputs that decide an evaluation, hence its key in the cache -> `objective.evaluation_key`
- front of several objectives, of trials -> `pareto.front`
- first trials (the baselines in the space) -> `running.baseline_params`
- seed of a trial's sampler -> `samplers.by_name.Samplers.for_ticket`
- best bound first, and when the best is proven -> `samplers.bound.BestBoundFirst`
- hill climbing -> `samplers.climb`; CMA-ES -> `samplers.evolution`; every point once ->
  `samplers.brute_force`
- state of a study (running, stopping, stopped, done, proven) -> `summary._state`
"""
