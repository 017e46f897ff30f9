"""A study as a person writes it: in a TOML file, or in Python.

Everything is checked here, at the edge: a mistyped key is answered with the nearest valid one, and
a value of the wrong type or outside its range is refused before anything is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from phaze_opt.codec import convert_fields, from_builtins, read_toml_file
from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AreaModel
from phaze_opt.printing import short_repr
from phaze_opt.search.space import Space
from phaze_opt.training import OptimizerName

SamplerName = Literal["random", "tpe", "climb", "nsga2"]


@dataclass(frozen=True, repr=False)
class AreaSpec:
    """How large the chip may be.

    Attributes
    ----------
    max_of
        Preset whose area is the limit; used where ``max_mm2`` is not given.
    max_mm2
        The limit itself.
    min_share
        Share of the limit below which a chip with more than one core of each kind is not
        considered; the paper uses 0.3.
    model
        Area model.
    """

    max_of: str = "tpuv4-phaze"
    max_mm2: float | None = None
    min_share: float = 0.0
    model: AreaModel = "phaze-22nm"

    def __post_init__(self) -> None:
        convert_fields(self, "area")
        if self.max_mm2 is not None and not self.max_mm2 > 0:
            raise InputError(f"max_mm2 is {self.max_mm2}, but it must be positive.")
        if not 0 <= self.min_share < 1:
            raise InputError(f"min_share is {self.min_share}, but it must be in [0, 1).")

    def __repr__(self) -> str:
        return short_repr(self)


@dataclass(frozen=True, repr=False)
class SearchSpec:
    """How the space is searched.

    Attributes
    ----------
    sampler
        See `phaze_opt.search.samplers.sampler_for`.
    trials
        Complete trials that the study shall have, unless a run asks for another number.
    seed
        Of the sampler.
    """

    sampler: SamplerName = "tpe"
    trials: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        convert_fields(self, "search")
        if self.trials < 1:
            raise InputError(f"trials is {self.trials}, but it must be at least 1.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is {self.seed}, but it must be between 0 and 2^32 - 1.")

    def __repr__(self) -> str:
        return short_repr(self)


@dataclass(frozen=True, repr=False)
class StudySpec:
    """One study; in Python ``StudySpec("mine", "bert-large", "tpuv4-ici-flat", 64, 256)``.

    Attributes
    ----------
    model, sequence, tensor_parallel
        Workload, its tokens per sample (``None`` for the model's own) and the tensor-parallel
        widths that placement may choose.
    cluster, devices
        Network preset and how many accelerators.
    global_batch
        Samples per optimizer step on all devices.
    residency
        Whether tensors may stay in the global buffer between operators.
    baselines
        Presets or TOML files to compare with, each at its best over microbatch, recompute and
        placement, with its own HBM.
    space, area, search
        What is searched, how large the chip may be, and how the search goes.
    """

    name: str
    model: str
    cluster: str
    devices: int
    global_batch: int
    optimizer: OptimizerName = "sgd"
    sequence: int | None = None
    tensor_parallel: tuple[int, ...] = (1,)
    sequence_parallel: bool = False
    residency: bool = True
    baselines: tuple[str, ...] = ("tpuv4-phaze", "tpuv4-lanes")
    space: Space = field(default_factory=Space)
    area: AreaSpec = field(default_factory=AreaSpec)
    search: SearchSpec = field(default_factory=SearchSpec)

    def __post_init__(self) -> None:
        convert_fields(self, "study")
        check_study_name(self.name)
        if self.devices < 1:
            raise InputError(f"devices is {self.devices}, but it must be at least 1.")
        if self.global_batch < 1:
            raise InputError(f"global_batch is {self.global_batch}, but it must be at least 1.")
        largest = max(self.space.microbatches)
        if largest > self.global_batch:
            raise InputError(
                f"space.microbatch goes up to {largest}, but it must not be above the global batch "
                f"of {self.global_batch}."
            )
        if not self.tensor_parallel or min(self.tensor_parallel) < 1:
            raise InputError(
                f"tensor_parallel is {list(self.tensor_parallel)}, but it must list widths of at "
                "least 1."
            )

    def __repr__(self) -> str:
        return short_repr(self)


def check_study_name(name: str) -> None:
    """Refuse a study name that could do harm in a shell, a file name or a terminal.

    Raises
    ------
    InputError
        If the name is empty, too long or holds other characters.
    """
    allowed = all(letter.isalnum() or letter in "-_." for letter in name)
    if not (0 < len(name) <= 100 and allowed and name.isascii() and name[0].isalnum()):
        raise InputError(
            f"The study name {name!r} is not allowed: up to 100 ASCII letters, digits, '-', '_' "
            "and '.', the first a letter or a digit."
        )


def read_spec(path: Path) -> StudySpec:
    """Read and check a study file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is not TOML, or a key or value is not allowed.
    """
    return from_builtins(read_toml_file(path, "study file"), StudySpec, f"study file {path}")
