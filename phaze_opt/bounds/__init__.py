"""What no point of a study can exceed, and its points in the order of these bounds.

Takes a frozen study with its captured workloads. Gives upper bounds of its objective
(`study_bounds.Bounds`), and the points of its space with the best bound first
(`best_first.BestFirst`). The sampler ``bound`` and the enumeration both live on it. It knows no
formula: it composes the ``least_*`` of the rooms to its left.

- `chip_columns`: the numbers of all chips of a space as arrays; `space_chips`: those that the study
  allows, in boxes of equal peak rates; `point_grid`: options, HBM sizes and chips as one grid.
- `study_bounds`: bounds of many chips at once, and of boxes of them; `bounding`: of parts of a
  space, with those that a database keeps.
- `best_first`: the points, with no more bounds than their order needs.
- `needless_memory`: points with more HBM than any placement can fill.
- `space_size`: how large a space is, and what bounding it takes.

Where a rule stands:

- what no point can exceed -> `study_bounds.Bounds.values`
- which objective has a bound -> `study_bounds.check_bounded`
- that an option is known to the bounds -> `phaze_opt.passes.handled`
"""
