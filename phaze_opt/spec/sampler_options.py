"""The names of the samplers, their options, and which samplers take several objectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from phaze_opt.codec import convert_fields, from_builtins
from phaze_opt.errors import InputError, look_up
from phaze_opt.printing import short_repr

SamplerName = Literal[
    "bound", "random", "tpe", "climb", "nsga2", "nsga3", "cmaes", "gp", "qmc", "brute-force"
]


@dataclass(frozen=True, repr=False)
class _Options:
    """Options of a sampler; fields are checked as in a document, and against least values."""

    _least: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        convert_fields(self, "search.options")
        for name, least in self._least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}, but it must be at least {least}.")

    __repr__ = short_repr


@dataclass(frozen=True, repr=False)
class NoOptions(_Options):
    """``bound``, ``random``, ``qmc`` and ``brute-force`` have no options."""


@dataclass(frozen=True, repr=False)
class TpeOptions(_Options):
    """Tree-structured Parzen estimator.

    It is Optuna's, which reads all trials: so begins a run of a study that has very many.

    Attributes
    ----------
    startup_trials
        Complete trials before the estimator replaces random points.
    n_ei_candidates
        Candidates, of which the sampler takes that with the highest expected improvement.
    """

    _least: ClassVar = {"startup_trials": 0, "n_ei_candidates": 1}

    startup_trials: int = 10
    n_ei_candidates: int = 128


@dataclass(frozen=True, repr=False)
class ClimbOptions(_Options):
    """Coordinate hill climbing.

    Attributes
    ----------
    startup_trials
        Complete trials, baselines included, before the climb replaces random points.
    """

    _least: ClassVar = {"startup_trials": 1}

    startup_trials: int = 8


@dataclass(frozen=True, repr=False)
class GeneticOptions(_Options):
    """NSGA-II and NSGA-III.

    Attributes
    ----------
    population_size
        Complete trials of a generation. The first generation is random, apart from the baselines.
    """

    _least: ClassVar = {"population_size": 2}

    population_size: int = 20


@dataclass(frozen=True, repr=False)
class EvolutionOptions(_Options):
    """CMA-ES.

    Attributes
    ----------
    startup_trials
        Complete trials, baselines included; the best of them is the initial mean.
    population_size
        Complete trials of a generation; ``None`` for 4 + ⌊3 ln(axes)⌋.
    sigma
        Initial standard deviation, as a share of the length of each axis.
    """

    _least: ClassVar = {"startup_trials": 1, "population_size": 4}

    startup_trials: int = 8
    population_size: int | None = None
    sigma: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sigma <= 1:
            raise InputError(f"sigma is {self.sigma}, but it must be in (0, 1].")


@dataclass(frozen=True, repr=False)
class GaussianProcessOptions(_Options):
    """Gaussian process.

    Attributes
    ----------
    startup_trials
        Complete trials before the process replaces random points.
    """

    _least: ClassVar = {"startup_trials": 1}

    startup_trials: int = 10


SamplerOptions = (
    NoOptions
    | TpeOptions
    | ClimbOptions
    | GeneticOptions
    | EvolutionOptions
    | GaussianProcessOptions
)

_OPTIONS: Mapping[str, type[SamplerOptions]] = {
    "bound": NoOptions,
    "random": NoOptions,
    "tpe": TpeOptions,
    "climb": ClimbOptions,
    "nsga2": GeneticOptions,
    "nsga3": GeneticOptions,
    "cmaes": EvolutionOptions,
    "gp": GaussianProcessOptions,
    "qmc": NoOptions,
    "brute-force": NoOptions,
}

_ONE_OBJECTIVE: tuple[SamplerName, ...] = ("bound", "climb", "cmaes")
"""Samplers that need a total order of finished trials."""

PARENTS_KEY = ":parent:"
"""Part of the keys of study attributes in which genetic samplers keep parents of a generation."""


def sampler_options(name: SamplerName, table: Mapping[str, Any]) -> SamplerOptions:
    """Read the options of a sampler from the table ``[search.options]`` of a spec.

    Raises
    ------
    InputError
        If the sampler has no such option (the sentence names the nearest), or a value is refused.
    """
    kind = look_up(_OPTIONS, name, "sampler")
    return from_builtins(dict(table), kind, f"table search.options of the sampler {name}")


def check_objectives(name: SamplerName, number: int) -> None:
    """Refuse a sampler that cannot take this number of objectives.

    Raises
    ------
    InputError
        If it cannot; the sentence names the samplers that can.
    """
    if number > 1 and name in _ONE_OBJECTIVE:
        able = sorted(set(get_args(SamplerName)) - set(_ONE_OBJECTIVE))
        raise InputError(
            f"The sampler {name} searches for one objective, but the study has {number}. Allowed "
            f"for several: {', '.join(able)}."
        )
