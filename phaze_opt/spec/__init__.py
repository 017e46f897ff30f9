"""The question of a study: its spec as a person writes it, and the frozen spec.

Takes a TOML file or Python values. Gives a `study_spec.StudySpec`, and from it a
`frozen.ResolvedStudy`, in which every name is resolved to numbers, so that any machine can run it.
Nothing here opens a database or evaluates a point.

- `study_spec`: the spec as written; `space`: the points that it searches, on `axes` whose names
  `axis_names` knows; `sampler_options`: the samplers and their options.
- `objectives`: the values that a study can optimise; `ordering`: which of two designs is better.
- `designs`: from a point to chip, network and training options; `run_inputs`: the inputs of the
  evaluation of one workload.
- `frozen`: the spec with every name resolved, and its hash; `freezing`: looks the names up, and
  captures the models.
- `constraints`: the limits that a design must keep.
- `variations`: a study under other constants of the cost model.
- `schema`: a JSON schema for editors; `template`: a study file to start from.

Where a rule stands:

- order of designs (throughput in bins of 0.1 %, HBM, area, energy) -> `ordering.Rank.key`
- value of an objective, also of an infeasible point -> `objectives.ObjectiveKind`
- several workloads relative to a baseline -> `objectives.aggregated`
- area limit, and its lower bound in the paper -> `constraints.chip_violation`; other limits ->
  `constraints.run_violation`
- axes without a price in the area model, which are refused -> `axis_names.refuse_free_axes`
- powers of two as exponents, steps, choices, derived values -> `axes`
- names that freezing resolves, and refusals before anything is captured -> `freezing.freeze`
- default sampler -> `study_spec.default_sampler`
- hash of a study -> `frozen.ResolvedStudy.hash`; hash without the search and its sampler ->
  `frozen.ResolvedStudy.question_hash`
"""
