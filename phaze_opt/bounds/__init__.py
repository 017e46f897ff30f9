"""Upper bounds of a study's objective, and the points of its space in the order of these bounds.

Takes a frozen study with its captured workloads. Gives upper bounds of its objective
(`study_bounds.StudyBounds`), and the points of its space, best bound first
(`best_first.BestFirst`). The sampler ``bound`` and the enumeration both use them. This room has no
formula: it composes the ``least_*`` of the rooms to its left.

- `chip_columns`: the fields of many chips as arrays; `axis_groups`: axes that decide them apart;
  `box_table`: boxes of equal peak rates, with the number of chips that the study allows;
  `space_chips`: these chips; `point_grid`: options, HBM sizes and chips as a grid.
- `bounded_chips`: chips, or boxes of them, that are bounded together; `box_times`: ways to place a
  model that lose on them anyway; `way_bounds`: bounds of single ways;
  `study_bounds`: of whole points; `bounding`: bounds of parts of a
  space, computed or from the database.
- `box_tree`: regions of boxes, halved along their rates; `core_units`: the cores of boxes;
  `box_order`: the boxes in order, bounded at once, or by halves and again by their cores.
- `best_first`: the points in order, with no more bounds than the order needs.
- `paid_chips`: what chips cost at least, and which power limits of dollars, carbon and watts leave.
- `power_limit`: what a limit of the power excludes.
- `needless_memory`: points with more HBM than any placement can fill.
- `space_size`: the size of a space, and the time and memory to bound it.

Where a rule stands:

- upper bound of the objective, and what limits cut -> `study_bounds.StudyBounds.values`
- chips that take equal energies -> `space_chips.EnergyKinds`
- rates of a box -> `box_table.box_rates`; rates that make no bound worse -> `box_tree.RISING`
- objectives that have a bound -> `study_bounds.check_bounded`
- options that the bounds know -> `phaze_opt.passes.handled`
"""
