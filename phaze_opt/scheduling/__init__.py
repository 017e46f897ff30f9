"""Order the operators of one layer pass on the cores of one chip, in the shortest time.

Takes a `schedule_problem.ScheduleProblem`: operators with their latency on one core and on all
cores, the share of each bandwidth that they take, and which precedes which; and, if tensors may
stay on the chip, a `residency.Residency`. Gives a `schedule_problem.Schedule`: start and mode of
every operator, what stays in the global buffer from when to when, makespan, and the proof (a lower
bound and the gap to it). The room imports no other room.

The way of a problem through the room:

- `schedule_problem`: the problem, the schedule, and what makes a problem invalid.
- `problem_columns`: a problem without residency as arrays.
- `solve_schedule`: the entrance, which calls the modules below.
- `canonical`: the form of a problem without names, and its key in a cache; `tuple_hashes` hashes as
  Python does.
- `reduction`: contract operators without duration, split into parts, drop modes and resources.
- `instance`: one part of a problem in integer time units, and a plan of it.
- `bounds`: lower bounds on the makespan.
- `set_bound`: a stronger one, for what searches leave open, whose prices lead further passes of the
  search; `price_kernel` is its compiled loop.
- `least_makespan`: lower bounds of a pass on many chips at once; `least_kernel` is its compiled
  loop.
- `list_scheduler`: priority list schedules.
- `quick_plan`: bounds and list schedules of a part in one compiled call.
- `part_schedules`: the parts one after another, with the narrow passes of the search, in one
  compiled call.
- `branch_and_bound`: the exact search; `search_arrays` is what it takes, `search_kernel`,
  `search_candidates` and `search_states` are its compiled loops.
- `local_search`: shorter plans by moves of single operators; `move_kernel` is its compiled loop.
- `cp_sat_modes`: CP-SAT for what the exact search leaves open; `cp_sat_exact`: a model that solves
  it without rounding, and the one that checks every proof, on `cp_sat_order`; `cp_sat`: how the
  solver is called.
- `cached_reads`: operators in their order beside a cache.
- `solve_jointly`: schedules with residency, which call the modules below, and the choice.
- `residency`: the joint problem of order, levels and residency, and the evaluation of a plan.
- `residency_orders`, `residency_frames`: what the fast method searches, the same for every chip.
- `residency_search`: the fast method and its bound; `residency_kernel` is its compiled loop.
- `tiles`: operators that run tile by tile in groups; `tile_lattice`: the plans that are searched,
  `tile_search`: the search; `tile_kernel` is its compiled loop.
- `cp_sat_residency`: CP-SAT for the joint problem; `cp_sat_positions`: a second model, which checks
  its proofs.
- `problem_file`: problems and results as JSON; `problem_rows` are its rows, `residency_file` its
  part on residency, `tile_file` that on tiles; `perfetto`: timelines.

Where a formula or rule stands:

- valid problem -> `schedule_problem.check_problem`
- resources that an operator takes in each mode -> `reduction._write_demand`
- lower bound of a schedule -> `bounds.root_bound`: the largest of critical path (`bounds.tails`)
  and work of each resource (`bounds._work_bound`)
- lower bound on many chips at once -> `least_makespan.least_makespan`
- lower bound from a mixture of resources and chains -> `bounds.mixed_bound`
- lower bound from the sets of operators that may run together -> `set_bound.set_bound`
- bound from which a makespan counts as optimal -> `instance.proving_bound`
- list schedule -> `list_scheduler.list_schedule`
- serial schedule -> `move_kernel._schedule_serially`
- states that the exact search drops -> docstring of `search_kernel`
- which operator goes before another one that takes the same -> docstring of `search_arrays`
- dominance between two states -> `search_states._dominates`
- what an operator takes with some tensors resident -> `residency.evaluate_plan`
- lower bound of the joint problem -> `residency_kernel.least_seconds`
- room of what a group keeps -> `tiles`, `tile_lattice._arrays`; what it saves ->
  `tile_lattice._entries`
- lower bound with tiles -> `tile_search.least_tiled_s`
- why more global buffer is never slower -> `residency_frames`
- which bound by CP-SAT is a proof -> `cp_sat_modes._check`, `cp_sat_positions.check_proof`
- gap -> `schedule_problem.Schedule.gap`
- utilisation of cores and bandwidths -> `problem_file.utilisation`
- key of a schedule in a cache -> `canonical.form_key`
"""
