"""Samplers propose the next point of a study; a spec names one, and no code comes through a spec.

Each proposal follows from the seed, the number of the ticket and the trials that are finished, and
from nothing that a process remembers: a study that was stopped and resumed, by any number of
processes, has the same trials as one that ran through. What a process keeps (`by_name.Samplers`)
only saves it from reading the same trials again.

- `options`: names, options of each sampler, and which of them take several objectives
- `by_name`: the sampler of a ticket
- `grid`: points as one index per axis; `replay`: what follows from the trials so far
- `climb`, `evolution`: replay trials; `brute_force`, `quasi_random`: follow from the ticket alone
- `bound`: best bound first, and what is proven; also alone, for any Optuna study
- `gaussian_process`: Optuna's, on one thread; `given`: parameters from outside
"""
