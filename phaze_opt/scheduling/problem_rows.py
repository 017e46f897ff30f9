"""The rows of a file with scheduling problems; `problem_file` says what they mean."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class LevelRow:
    """A further level of an operator in a file."""

    working_bytes: int
    hbm_bytes: float
    other_s: float


@dataclass(frozen=True)
class TileRow:
    """An operator in a file that is cut into a number of tiles, with the numbers of all of them."""

    count: int
    levels: tuple[LevelRow, ...]
    saved_bytes: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class HeldRow:
    """What one operator alone moves again for every tile in a file."""

    operator: str
    bytes: int
    moved_bytes: int | None = None


class TensorRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor in a file, where two keys are no names in Python."""

    readers: tuple[str, ...] = msgspec.field(name="to")
    bytes: int
    producer: str | None = msgspec.field(name="from", default=None)
    outlives: bool = False
    saved_bytes: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class OperatorRow:
    """One operator in a file; shares on all cores default to those on one core."""

    id: str
    core: str
    latency_s: float
    intra_op_latency_s: float
    hbm_fraction: float = 0.0
    glb_fraction: float = 0.0
    link_fraction: float = 0.0
    intra_op_hbm_fraction: float | None = None
    intra_op_glb_fraction: float | None = None
    hbm_bytes: float = 0.0
    working_bytes: int = 0
    other_s: float | None = None
    overhead_s: float = 0.0
    levels: tuple[LevelRow, ...] = ()
    tiles: tuple[TileRow, ...] = ()


@dataclass(frozen=True)
class ProblemRow:
    """One problem in a file; edges hold operator ids. A file may also state the known optimum."""

    num_tc: int
    num_vc: int
    operators: tuple[OperatorRow, ...]
    edges: tuple[tuple[str, str], ...]
    name: str = ""
    optimal_makespan_s: float | None = None
    tensors: tuple[TensorRow, ...] = ()
    glb_bytes: int | None = None
    hbm_bytes_per_s: float | None = None
    through: tuple[tuple[str, str], ...] = ()
    held: tuple[HeldRow, ...] = ()
