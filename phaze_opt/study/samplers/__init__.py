"""Samplers propose the next point of a study; a spec contains the name of a sampler, never code.

Each proposal follows from the seed, the number of the ticket and the finished trials, and never
from the memory of a process: a study that was stopped and resumed, by any number of processes, has
the same trials as one without a stop. A process keeps state (`by_name.Samplers`) only to avoid
reading trials twice. `phaze_opt.spec.sampler_options` has the names and options of the samplers.

- `by_name`: the sampler of a ticket
- `grid`: points as one index per axis; `replay`: states of a search that follow from the trials
- `climb`, `evolution`: replay trials; `brute_force`, `quasi_random`: follow from the ticket alone
- `bound`: best bound first, with a proof; also for any Optuna study; `likely`: what it tries first
  under a limit of the power, which follows from the study alone
- `gaussian_process`: Optuna's, on one thread; `given`: parameters of a ticket
"""
