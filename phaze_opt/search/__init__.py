"""Search many points: studies in a database that can be stopped, resumed and shared.

Takes a `spec.StudySpec` (from a TOML file or Python). Gives a `study.Study`: an Optuna study with
exactly N complete trials, whose best design (`best_design.BestDesign`) is found by one order of
designs and compared with baselines.

The way of a study through the room:

- `spec`: the study as a person writes it; `space`: the points that it searches, on `axes` whose
  names `axis_names` knows; `designs`: from a point to chip, network and options.
- `spec_check`, `spec_schema`, `spec_text`: what a spec means, for editors, and one to begin with.
- `frozen`: the spec with every name resolved, and its hash; `freezing`: looks the names up, and
  captures the models.
- `study`: `study.create_study`, `study.load_study` and the study itself; `copying`: copies of it,
  and studies started anew with another version of the cost model.
- `snapshot`: all of a study at one moment, with the files of its trials (`attached_files`) and the
  `answers` about its whole space; `bundle`: the same as one file, whose form is in `bundle_file`,
  its trials in `bundle_trials` and its lines in `bundle_documents`; `sharing`: a study written into
  a bundle, and made of one; `merging`: two studies of one spec joined.
- `running`: a run, from the baselines and tickets to its end; `processes`: worker processes and
  signals; `worker`: one worker, which claims tickets, asks a sampler (`samplers`), evaluates and
  tells.
- `watching`: how workers show their trials to people.
- `guided`: the points of the sampler ``bound``, also for a study of Optuna alone.
- `neighbourhood`: what one step from the best design on each axis brings.
- `proving`: at the end of a run, the passes of the best design that the search left open.
- `objective`: from a point to its metrics; `trials`: the metrics of a trial, written and read.
- `baselines`: known accelerators, each at its best; `ordering`: the order of designs.
- `best_design`: the best design with all that is known of it; `summary`: the state of a study.
- `chips`, `grid`: the points of a whole space; `bounds`, `bounding`, `best_first`: what none of
  them can exceed, and their order; `exhaustive`, `enumerating`: the certified best designs.
- `certificate`: what was proven, as a file; `verifying` checks it (`verification`, with
  `verifying_boxes` and `verifying_chips`) by the bounds of `scalar_bounds`, the one place where
  formulas stand twice: plain Python for the time of a batch (`scalar_batches`, `scalar_splits`,
  `scalar_candidates`), passes (`scalar_passes`, `scalar_makespans`), operators
  (`scalar_operators`, of a chip as `scalar_rates` has it) and products (`scalar_products`).
- `front_bounds`, `front_search`, `fronts`: the whole space, and all designs that none other beats.
- `variations`, `robustness`: the whole space again, under other constants of the cost model.
- `pareto`, `trial_choice`, `difference`: fronts, lists of trials, two studies side by side.
- `comparing`: searches of one question, measured by its certified optimum, by `hypervolumes` and
  by `random_search`.
- `store`: everything that opens the database.

Where a formula or rule stands:

- order of designs (throughput in bins of 0.1 %, HBM, area, energy) -> `ordering.Rank.key`
- values that a study searches for, also of an infeasible point -> `objectives.ObjectiveKind`
- several workloads relative to a baseline -> `objectives.aggregated`
- area limit, and its lower bound in the paper -> `constraints.chip_violation`; other limits ->
  `constraints.run_violation`
- what costs nothing under an area model, and is refused -> `axis_names.refuse_free_axes`
- best of the options that every evaluation solves -> `objective.best_of_runs`
- front of several objectives, of trials -> `pareto.front`; of a space -> `front_search.Archive`
- what no point can exceed -> `bounds.Bounds.values`; which points an enumeration leaves out ->
  `exhaustive._Top.excludes`
- inputs that decide an evaluation, hence its key in the cache -> `objective.evaluation_key`
- limits and checks of a bundle -> `bundle_file.unpack` and `bundle.read_bundle`
- which trial of two studies is kept -> `merging.merge_studies`
- hash of a study -> `frozen.ResolvedStudy.hash`; of its question, however it is searched for ->
  `frozen.ResolvedStudy.question_hash`
- trials that random search needs -> `random_search.random_search`
- powers of two as exponents, steps, choices, derived values -> `axes`
- first trials (the baselines in the space) -> `running.baseline_params`
- seed of a trial's sampler -> `samplers.by_name.Samplers.for_ticket`
- best bound first, and when the best is proven -> `samplers.bound.BestBoundFirst`; sampler by
  default -> `spec.default_sampler`
- no point twice among workers -> `store.tickets.TicketOffice.claim`
- hill climbing -> `samplers.climb`; CMA-ES -> `samplers.evolution`; every point once ->
  `samplers.enumeration`
- number of trials that a study shall have -> `store.tickets.TicketOffice.target`
- state of a study (running, stopping, stopped, done, proven) -> `summary._state`
- lease expiry -> `store.tables.lease_is_over`; renewal -> `store.leases.LeaseKeeper`
"""
