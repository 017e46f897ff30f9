"""The whole space of a study: its best designs and its fronts with proof, and a check of the proof.

Takes a `phaze_opt.study.study.Study`. Gives an `exhaustive.Enumeration` with its certificate, a
`fronts` answer, or what other constants of the cost model would change (`robustness`).

- `engine`: what bounds and evaluates points, once in every process; `pools`: where that is done.
- `exhaustive`, `enumerating`: the certified best designs; `answers`: as a database keeps them.
- `front_bounds`, `front_search`, `fronts`: all designs that no other one beats.
- `robustness`: the whole space again, under other constants of the cost model.
- `certificate`: what was proven, as a file; `verifying` checks it (`verification`, with
  `verifying_boxes` and `verifying_chips`) by the bounds of `scalar_bounds`, the one place where
  formulas stand twice: plain Python for the time of a batch (`scalar_batches`, `scalar_splits`,
  `scalar_candidates`), passes (`scalar_passes`, `scalar_makespans`), operators
  (`scalar_operators`, of a chip as `scalar_rates` has it) and products (`scalar_products`).
- `comparing`: searches of one question, measured by its certified optimum, by `hypervolumes` and
  by `random_search`.

Where a rule stands:

- which points an enumeration leaves out -> `exhaustive._Top.excludes`
- which points a front leaves out -> `front_search.Archive`
- what makes a certificate valid -> `verifying.verify`
- trials that random search needs -> `random_search.random_search`
"""
