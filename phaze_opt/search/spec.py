"""A study as a person writes it: a TOML file read into frozen dataclasses.

Everything is checked here, at the edge: a mistyped key is answered with the nearest valid one, and
a range that makes no sense is refused before anything is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from phaze_opt.codec import from_builtins, read_toml_file
from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AreaModel
from phaze_opt.training import OptimizerName, Recompute

SamplerName = Literal["random", "tpe", "climb", "nsga2"]


@dataclass(frozen=True)
class PowerRange:
    """All powers of two from ``min`` to ``max``, both included."""

    min: int
    max: int

    def __post_init__(self) -> None:
        for name in ("min", "max"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise InputError(f"{name} is {value}, but it must be a power of two, at least 1.")
        if self.min > self.max:
            raise InputError(f"min is {self.min}, but it must not be above max, {self.max}.")

    @property
    def exponents(self) -> tuple[int, int]:
        """Smallest and largest binary logarithm."""
        return self.min.bit_length() - 1, self.max.bit_length() - 1

    @property
    def values(self) -> tuple[int, ...]:
        """The powers of two themselves."""
        low, high = self.exponents
        return tuple(2**exponent for exponent in range(low, high + 1))


@dataclass(frozen=True)
class SpaceSpec:
    """What may vary; the defaults are the architecture space of Phaze (ICML 2024).

    Attributes
    ----------
    base
        Preset, or TOML file, that gives every number that is not searched (clock, bandwidths,
        calibration).
    pe_vc
        Lanes of a vector core, or ``"pe_x"`` to tie them to the PE array as the paper does.
    hbm_gib, recompute
        Choices.
    """

    base: str = "tpuv4-phaze"
    num_tc: PowerRange = PowerRange(1, 4096)
    num_vc: PowerRange = PowerRange(1, 4096)
    pe_x: PowerRange = PowerRange(2, 256)
    pe_y: PowerRange = PowerRange(2, 256)
    pe_vc: PowerRange | Literal["pe_x"] = "pe_x"
    glb_mib: PowerRange = PowerRange(2, 128)
    hbm_gib: tuple[int, ...] = (32, 64, 80)
    microbatch: PowerRange = PowerRange(1, 8)
    recompute: tuple[Recompute, ...] = ("none", "full")

    def __post_init__(self) -> None:
        for name in ("hbm_gib", "recompute"):
            choices = getattr(self, name)
            if not choices or len(set(choices)) != len(choices):
                raise InputError(f"{name} is {list(choices)}, but it must list different choices.")
        if min(self.hbm_gib) < 1:
            raise InputError(f"hbm_gib holds {min(self.hbm_gib)}, but it must be at least 1.")


@dataclass(frozen=True)
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
        if self.max_mm2 is not None and not self.max_mm2 > 0:
            raise InputError(f"max_mm2 is {self.max_mm2}, but it must be positive.")
        if not 0 <= self.min_share < 1:
            raise InputError(f"min_share is {self.min_share}, but it must be in [0, 1).")


@dataclass(frozen=True)
class SearchSpec:
    """How the space is searched."""

    sampler: SamplerName = "tpe"
    trials: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise InputError(f"trials is {self.trials}, but it must be at least 1.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is {self.seed}, but it must be between 0 and 2^32 - 1.")


@dataclass(frozen=True)
class StudySpec:
    """One study.

    Attributes
    ----------
    model, sequence, tensor_parallel
        Workload, its tokens per sample (``None`` for the model's own) and the tensor-parallel
        widths that placement may choose.
    cluster, devices
        Network preset and how many accelerators.
    baselines
        Presets or TOML files to compare with, each at its best over microbatch, recompute and
        placement, with its own HBM.
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
    baselines: tuple[str, ...] = ("tpuv4-phaze", "tpuv4-lanes")
    space: SpaceSpec = field(default_factory=SpaceSpec)
    area: AreaSpec = field(default_factory=AreaSpec)
    search: SearchSpec = field(default_factory=SearchSpec)

    def __post_init__(self) -> None:
        check_study_name(self.name)
        if self.devices < 1:
            raise InputError(f"devices is {self.devices}, but it must be at least 1.")
        if self.global_batch < 1:
            raise InputError(f"global_batch is {self.global_batch}, but it must be at least 1.")
        if self.space.microbatch.max > self.global_batch:
            raise InputError(
                f"space.microbatch goes up to {self.space.microbatch.max}, but it must not be "
                f"above the global batch of {self.global_batch}."
            )
        if not self.tensor_parallel or min(self.tensor_parallel) < 1:
            raise InputError(
                f"tensor_parallel is {list(self.tensor_parallel)}, but it must list widths of at "
                "least 1."
            )


def check_study_name(name: str) -> None:
    """Refuse a study name that a shell, a file name or a terminal would stumble over.

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
