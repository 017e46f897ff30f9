"""Execution traces of a batch by Chakra's schema, a file for each rank.

``trace.R.et`` holds the nodes of rank R: first ``GlobalMetadata``, then every ``Node`` after those
that it waits for. ``comm_groups.json`` names the ranks of every group by its number, which nodes
of collectives have as ``pg_name``.

``data_deps`` are all nodes that a node waits for, since Chakra's reader releases nodes by them
alone; those of them that are only the order of a stage's work are ``ctrl_deps`` too. A node that
receives waits for the one of the other rank with the same ``comm_tag`` that sends. Times are
rounded to microseconds from the start of the batch, and durations are differences of these, so that
what is rounded does not add up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from uuid import uuid4

from phaze_opt.choices import ChakraRanks
from phaze_opt.codec import to_json
from phaze_opt.errors import ConflictError, InputError
from phaze_opt.interchange.batch_nodes import LayerPieces, batch_nodes
from phaze_opt.interchange.chakra_schema import (
    COLLECTIVE,
    COLLECTIVE_TYPES,
    COMPUTE,
    RECEIVE,
    SCHEMA_VERSION,
    SEND,
    ChakraMessages,
    chakra_messages,
    framed,
)
from phaze_opt.interchange.node_exchanges import GroupExchange, StageMessage
from phaze_opt.interchange.stage_nodes import BatchNode
from phaze_opt.paths import look, path_error, reason
from phaze_opt.placement.chunk_exchanges import chunk_exchanges
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import placed_candidate

MOST_NODES = 4_000_000
"""Of all files together, some 500 MB."""

GROUPS_FILE = "comm_groups.json"

_TYPES = {"compute": COMPUTE, "collective": COLLECTIVE, "send": SEND, "receive": RECEIVE}
_US_PER_S = 1e6


def trace_file(rank: int) -> str:
    """Return the name of the file of a rank."""
    return f"trace.{rank}.et"


def check_new_folder(path: Path) -> None:
    """Make sure that a folder may be made, before the work whose result it shall hold.

    Parameters
    ----------
    path
        The folder; one that is there must be empty.

    Raises
    ------
    ConflictError
        If there is such a folder, and something in it.
    InputError
        If no folder can have the name, a file has it, or its own folder does not exist.
    """
    subject = f"The folder {path}"
    there = look(path, subject)
    if there is None:
        if not path.parent.is_dir():
            raise InputError(f"{subject} cannot be made: its own folder does not exist.")
        return
    if not path.is_dir():
        raise InputError(f"{subject} cannot be made: there is a file of that name.")
    try:
        is_empty = not any(path.iterdir())
    except OSError as error:
        raise path_error(f"{subject} cannot be read: {reason(error)}.", error) from None
    if not is_empty:
        raise ConflictError(f"{subject} exists already and is not empty; give another one.")


def write_traces(
    folder: Path,
    problem: PlacementProblem,
    placement: Placement,
    layers: LayerPieces | None = None,
    ranks: ChakraRanks = "all",
) -> None:
    """Write the traces of one batch into a new folder, which is there when all of them are.

    Parameters
    ----------
    folder
        See `check_new_folder`.
    problem, placement, layers
        See `phaze_opt.interchange.batch_nodes.batch_nodes`.
    ranks
        Files of all of them, or of the first one of every stage: all others of a stage do the same.

    Raises
    ------
    ConflictError
        If the folder exists already and is not empty.
    InputError
        If there would be too many nodes, or as `check_new_folder`.
    PhazeError
        If the folder cannot be written.
    """
    check_new_folder(folder)
    grid = RankGrid(placement)
    copies = 1 if ranks == "stages" else placement.devices // placement.pipeline
    exchanges = chunk_exchanges(problem, placement)
    # Only then are nodes made: there is at least one for every pass.
    _check_count(2 * placement.microbatches * placement.pipeline * copies, placement, ranks)
    stages = list(batch_nodes(problem, placement, exchanges, layers))
    _check_count(sum(map(len, stages)) * copies, placement, ranks)
    part = folder.parent / f"{uuid4().hex}.part"
    try:
        part.mkdir()
        groups: dict[tuple[int, ...], int] = {}
        for stage, nodes in enumerate(stages):
            encoded = EncodedStage(chakra_messages(), nodes, placement)
            for rank, data in encoded.files(grid, stage, copies, groups):
                (part / trace_file(rank)).write_bytes(data)
        numbers = {str(number): list(members) for members, number in groups.items()}
        (part / GROUPS_FILE).write_bytes(to_json(numbers))
        part.replace(folder)
    except (OSError, ValueError) as error:
        sentence = f"The folder {folder} cannot be written: {reason(error)}."
        raise path_error(sentence, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_count(nodes: int, placement: Placement, ranks: ChakraRanks) -> None:
    """Refuse traces that would be too large."""
    if nodes > MOST_NODES:
        less = "" if ranks == "stages" else "--chakra-ranks stages or "
        raise InputError(
            f"Traces of {placement.degrees_text} with {placement.microbatches:,} microbatches have "
            f"at least {nodes:,} nodes, but at most {MOST_NODES:,} are written; {less}fewer "
            "microbatches give less."
        )


class RankGrid:
    """Which rank is where: stages, replicas (devices of a sequence among them), tensor groups."""

    def __init__(self, placement: Placement) -> None:
        self.candidate = placed_candidate(placement)

    def rank(self, stage: int, replica: int, tensor: int) -> int:
        """Return the number of a rank."""
        own = self.candidate
        group, member = divmod(replica, own.inside or own.data)
        of_replica = group * own.outside_stride + member * own.stride("data")
        return stage * own.stride("pipeline") + of_replica + tensor

    def places(self, copies: int) -> Iterator[tuple[int, int]]:
        """Yield replica and place in the tensor group of the first devices of a stage."""
        every = product(range(self.candidate.data), range(self.candidate.tensor))
        yield from (place for place, _ in zip(every, range(copies), strict=False))


class EncodedStage:
    """The nodes of a stage as bytes: what all ranks have, and what each adds."""

    def __init__(
        self, messages: ChakraMessages, nodes: Sequence[BatchNode], placement: Placement
    ) -> None:
        self.messages, self.nodes = messages, nodes
        attributes = [
            messages.attribute(name="time_per_batch_s", double_val=placement.time_per_batch_s),
            messages.attribute(name="placement", string_val=placement.degrees_text),
            messages.attribute(name="pipeline_schedule", string_val=placement.pipeline_schedule),
        ]
        metadata = messages.metadata(version=SCHEMA_VERSION, attr=attributes)
        self.metadata: bytes = framed(metadata.SerializeToString())
        self.shared = [self._shared(number, node) for number, node in enumerate(nodes)]

    def _shared(self, number: int, node: BatchNode) -> bytes:
        """Return what the node of every rank has."""
        start_us, end_us = (round(seconds * _US_PER_S) for seconds in node.span_s)
        attributes = [self.messages.attribute(name="is_cpu_op", bool_val=False)]
        if isinstance(node.exchange, GroupExchange):
            kind = COLLECTIVE_TYPES[node.exchange.kind]
            attributes.append(self.messages.attribute(name="comm_type", int64_val=kind))
            size_bytes = node.exchange.given_bytes
            attributes.append(self.messages.attribute(name="comm_size", int64_val=size_bytes))
        elif node.exchange is not None:
            size_bytes, tag = node.exchange.size_bytes, node.exchange.tag
            attributes.append(self.messages.attribute(name="comm_size", int64_val=size_bytes))
            attributes.append(self.messages.attribute(name="comm_tag", int32_val=tag))
        message = self.messages.node(
            id=number,
            name=node.name,
            type=_TYPES[node.kind],
            ctrl_deps=node.follows,
            data_deps=sorted({*node.follows, *node.needs}),
            start_time_micros=start_us,
            duration_micros=end_us - start_us,
            attr=attributes,
        )
        data: bytes = message.SerializeToString()
        return data

    def files(
        self, grid: RankGrid, stage: int, copies: int, groups: dict[tuple[int, ...], int]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the ranks of the stage, each with the content of its file.

        Parameters
        ----------
        grid, stage
            Where they are.
        copies
            How many.
        groups
            Numbers of groups by their ranks; those that are new are added.
        """
        for replica, tensor in grid.places(copies):
            rank, own = grid.rank(stage, replica, tensor), [self.metadata]
            added: dict[object, bytes] = {None: b""}
            for node, shared in zip(self.nodes, self.shared, strict=True):
                key: object = None
                if isinstance(node.exchange, GroupExchange):
                    key = node.exchange[2:]  # all but what is sent
                    if key not in added:
                        members = node.exchange.ranks_with(rank)
                        number = groups.setdefault(members, len(groups) + 1)
                        added[key] = self._attributes(pg_name=str(number))
                elif isinstance(node.exchange, StageMessage):
                    key = node.kind, node.exchange.stage
                    if key not in added:
                        other = grid.rank(node.exchange.stage, replica, tensor)
                        ends = (rank, other) if node.kind == "send" else (other, rank)
                        added[key] = self._attributes(comm_src=ends[0], comm_dst=ends[1])
                # A repeated field goes on where a message is continued.
                own.append(framed(shared + added[key]))
            yield rank, b"".join(own)

    def _attributes(self, **values: int | str) -> bytes:
        """Return attributes of a node as bytes that go on with it."""
        attributes = [
            self.messages.attribute(name=name, string_val=value)
            if isinstance(value, str)
            else self.messages.attribute(name=name, int32_val=value)
            for name, value in values.items()
        ]
        data: bytes = self.messages.node(attr=attributes).SerializeToString()
        return data
