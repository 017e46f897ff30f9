"""What the files of both published formats have in common: values, edges, and no cycles.

Other programs write these files: an integer may stand as 4.0, a flag as 0 or 1, and keys that no
reader needs are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, field

from phaze_opt.codec import from_json
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_SIZE, is_finite

T = TypeVar("T")

Amount = Annotated[float, Meta(ge=0.0)]
"""Bytes, or a time."""

Id = Annotated[int, Meta(ge=-MOST_SIZE, le=MOST_SIZE)]
"""Of a node, or of a class of nodes."""

Flag = bool | Annotated[int, Meta(ge=0, le=1)]
"""True or false."""


class FileEdge(Struct, frozen=True):
    """An edge between two nodes, given by their ids."""

    source: Id = field(name="sourceId")
    destination: Id = field(name="destId")


def read_rows(data: bytes, kind: type[T], what: str) -> T:
    """Read a file as `from_json` does, with integers that may stand as 4.0."""
    return from_json(data, kind, what, _shortest)


def _shortest(literal: str) -> float:
    """Return a number that is written with a point or an exponent; as an integer if it is one."""
    value = float(literal)
    if not is_finite(value):
        raise ValueError("Number out of range")
    return int(value) if value.is_integer() and abs(value) <= MOST_SIZE else value


def index_by_id(ids: Sequence[int], place: str) -> dict[int, int]:
    """Return the index of each id, and refuse an id that is there twice."""
    index_of: dict[int, int] = {}
    for index, identifier in enumerate(ids):
        if index_of.setdefault(identifier, index) != index:
            raise InputError(f"{place}[{index}]: the id {identifier} is there twice.")
    return index_of


def edge_indices(
    edges: Sequence[FileEdge], index_of: Mapping[int, int], place: str
) -> list[tuple[int, int]]:
    """Return edges with indices in place of ids; refuse an unknown node, and an edge to itself."""
    for index, edge in enumerate(edges):
        for key, end in (("sourceId", edge.source), ("destId", edge.destination)):
            if end not in index_of:
                raise InputError(f"{place}[{index}]: {key} is {end}, but there is no such node.")
        if edge.source == edge.destination:
            raise InputError(f"{place}[{index}] leads from node {edge.source} to itself.")
    return [(index_of[edge.source], index_of[edge.destination]) for edge in edges]


def check_acyclic(edges: Iterable[tuple[int, int]], ids: Sequence[int], place: str) -> None:
    """Refuse a cycle, naming its nodes."""
    before: dict[int, set[int]] = {index: set() for index in range(len(ids))}
    for source, destination in edges:
        before[destination].add(source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        path = " → ".join(str(ids[index]) for index in error.args[1])
        raise InputError(f"{place} form a cycle: {path}.") from None
