"""Layers over the devices of a cluster: degrees of parallelism, stages, memory, time of a batch.

Takes a `placement_problem.PlacementProblem` (layers with seconds and bytes at every tensor
degree, a cluster, training options, the memory of a device) and gives a
`placement_problem.Placement`. `solve_placement.solve_placement` is the entrance.

- `candidates`: all degrees that the cluster allows; `layout`: which layers each stage holds.
- `chain_bytes`: what every run of layers holds and sends; `costs`: its seconds too, both with the
  loops of `runs`; `memory`: bytes on the devices of a stage, `held_stages`: of all of a layout.
- `synchronisation`: what replicas exchange; `overlap`: the queues that run beside compute, with
  `exchanges` where that happens once per batch; `candidate_costs` joins them for one candidate.
- `chain`: best split of a chain by dynamic programming, and `chain_bounds` of it; `even`: even
  splits; `given_split`: stated ones; `best`: splits and replays of all candidates, as far as
  `degree_bounds` asks for them, which begins with the numbers of stages that fit the memory
  (`fitting_stages`); `proof`: what is faster when it is replayed, or that nothing is, by
  `split_search` of single candidates with `split_bounds`; `interleaved`: several chunks per stage;
  `split_backward`: schedules that put weight gradients off; `expert`: known degrees; `deep`: chains
  of thousands of layers, by what their stages can hold (`deep_stages`).
- `closed_form`: the sums that those share, inlined into compiled loops.
- `pipeline`: the event replay, `zero_bubble`: that of backwards in two parts, and their orders;
  `timing`: the time of a batch; `stage_kinds`: that of stages on devices that differ; `describe`:
  the answer in full, `chunk_exchanges`: what its chunks exchange for a microbatch, each kind apart.
- `kinds`: a pipeline over several kinds of device, with `kind_splits` of it.
- `least`: lower bound of the time over all placements, for many accelerators at once; its tables
  are in `least_candidates`, filled in by `collected_candidates`, its loops in `least_times` and
  `least_splits`.
- `most_times`: no placement that is chosen takes longer, for many accelerators at once.
- `infeasible`: what does not fit, and by how much.

Where a formula stands, that loops and bounds call too:

- 1F1B time in closed form: `closed_form.pipelined_s` without what comes first and last, the
  docstring of `chain` with it
- work of a stage in a batch: `closed_form.busy_s`; after its first backward:
  `closed_form.after_first_s`; the most of the time that all layers take for one microbatch:
  `closed_form.even_share`
- 1F1B, GPipe and interleaved time, event by event: `pipeline.finish_s`, `pipeline.replay`
- orders of schedules that split the backward, and their replay: `zero_bubble.order_of`,
  `zero_bubble.replay_order`; what they have room for: `timing.zero_bubble_work`
- lower bound of the replayed time of a split, and of those that begin like it: the docstring of
  `split_bounds`; of all splits of a candidate, at a glance: `chain_bounds.least_times`, with
  `chain_bounds.filled_s`
- lower bound over all splits: the docstring of `least_splits`; without them
  `least_times._pipelined_s`; what the last stages of a split add to it: `split_bounds.precede`
- least time of a tensor degree by its work alone: `chain_bounds.least_of_work`
- microbatches in flight: `closed_form.held_at`, `pipeline.interleaved_in_flight`
- frozen weights of a stage: `phaze_opt.passes.layer_cost.local_frozen_parameters`; those without
  narrow copies: `phaze_opt.passes.layer_cost.local_wide_parameters`
- memory of a stage: `memory.share_bytes` of its state, `memory.with_stashes` in all; what ZeRO
  shares out: `memory.Shards`
- routed experts that are shared out: which devices hold the same ones
  `phaze_opt.training.Training.with_same_experts`, which exchange them `synchronisation.GroupTerms`,
  what ZeRO shares out of them `chain_bytes.whole_parameters_of_runs`
- volumes of ZeRO 0 to 3: the table in the docstring of `synchronisation`
- exposed gradients and gathers: `overlap.backward_queue_s`, `overlap.forward_queue_s`; the cores
  that hidden ones take: `overlap.charged_s`
- microbatches and padding: `phaze_opt.training.Training.microbatches`
- devices that share a sequence, which are replicas of the parameters: `Training.replica_step`,
  `phaze_opt.degrees.Degrees.as_replicas`
- what ``partial`` overlap hides: `synchronisation.hidden_share`
- bytes per parameter of optimizers: `phaze_opt.optimizers.OPTIMIZERS`
"""
