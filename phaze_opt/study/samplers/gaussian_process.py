"""Bayesian optimisation with a Gaussian process: for few trials that take long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution
from optuna.samplers import GPSampler
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from optuna.study import Study


class GaussianProcessSampler(GPSampler):
    """Optuna's Gaussian process, on one thread.

    Each proposal fits the process anew to all finished trials: about 0.2 s at 100 trials and 0.5 to
    1.5 s at 400 on one core; beyond, the time grows with the cube of the number. Use it for a few
    hundred trials. Several threads take longer (5 s at 400), and their sums round differently;
    ``OPENBLAS_NUM_THREADS`` sets the threads of numpy, which are 1 under the command line.
    """

    def __init__(self, seed: int, startup_trials: int) -> None:
        super().__init__(
            seed=seed,
            n_startup_trials=startup_trials,
            deterministic_objective=True,
            warn_independent_sampling=False,
        )

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose the point with the highest expected improvement."""
        with _one_thread():
            return super().sample_relative(study, trial, search_space)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on one thread for a while."""
    import torch  # takes a second, and only this sampler needs it

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
