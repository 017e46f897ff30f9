"""What a study asks: its spec as a person writes it, and the same frozen.

Takes a TOML file or Python values. Gives a `study_spec.StudySpec`, and from it a
`frozen.ResolvedStudy`, in which every name is resolved to numbers, so that any machine can run it.
Nothing here opens a database or evaluates a point.

- `study_spec`: the spec as it is written; `space`: the points that it searches, on `axes` whose
  names `axis_names` knows; `sampler_options`: which samplers there are, and their options.
- `objectives`: what may be searched for; `ordering`: which of two designs is the better one.
- `designs`: from a point to chip, network and training options; `run_inputs`: what of them decides
  the evaluation of one workload.
- `frozen`: the spec with every name resolved, and its hash; `freezing`: looks the names up, and
  captures the models.
- `constraints`: the limits that a design must keep.
- `variations`: the same study under other constants of the cost model.
- `schema`: a JSON schema for editors; `template`: a file to begin with.

Where a rule stands:

- order of designs (throughput in bins of 0.1 %, HBM, area, energy) -> `ordering.Rank.key`
- values that a study searches for, also of an infeasible point -> `objectives.ObjectiveKind`
- several workloads relative to a baseline -> `objectives.aggregated`
- area limit, and its lower bound in the paper -> `constraints.chip_violation`; other limits ->
  `constraints.run_violation`
- what costs nothing under an area model, and is refused -> `axis_names.refuse_free_axes`
- powers of two as exponents, steps, choices, derived values -> `axes`
- sampler by default -> `study_spec.default_sampler`
- hash of a study -> `frozen.ResolvedStudy.hash`; of its question, however it is searched for ->
  `frozen.ResolvedStudy.question_hash`
"""
