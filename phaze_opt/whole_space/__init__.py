"""The whole space of a study: its best designs and its fronts with proof, and a check of the proof.

Takes a `phaze_opt.study.study.Study`. Gives an `exhaustive.Enumeration` with its certificate, a
front (`fronts`), or the best designs under other constants of the cost model (`robustness`).

- `engine`: bounds and evaluates points, once in every process; `pools`: in which processes.
- `exhaustive`, `enumerating`: the certified best designs; `answers`: their storage.
- `front_bounds`, `front_search`, `fronts`: all designs that no other design dominates.
- `robustness`: the whole space again, under other constants of the cost model.
- `certificate`: the proof of an enumeration as a file; `verifying` checks it (`verification`, with
  `verifying_boxes`, `verifying_chips` and `verifying_energies`) by the bounds of `scalar_bounds`,
  the one place where formulas stand a second time: plain Python for the time of a batch
  (`scalar_batches`, `scalar_splits`, `scalar_candidates`), passes (`scalar_passes`,
  `scalar_makespans`), operators (`scalar_operators`, `scalar_rates`) and products
  (`scalar_products`).
- `comparing`: studies of one question, measured by its certified optimum, by `hypervolumes` and
  by `random_search`.

Where a rule stands:

- points that an enumeration excludes -> `exhaustive._Top.excludes`
- designs that a distinct top leaves out -> `exhaustive._DistinctTop.add`
- points that a front excludes -> `front_search.Archive`
- validity of a certificate -> `verifying.verify`
- expected trials of random search -> `random_search.random_search`
"""
