"""An independent reader of execution traces: the wire format by hand, and a replay of all ranks."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


@dataclass
class Node:
    """A node of a trace; times in microseconds."""

    id: int
    name: str
    type: int
    ctrl_deps: list[int]
    data_deps: list[int]
    start: int
    duration: int
    attributes: dict[str, Any]
    ready: int | None = None
    done: int | None = None


@dataclass
class Trace:
    """What a file holds."""

    metadata: dict[str, Any]
    version: str
    nodes: dict[int, Node] = field(default_factory=dict)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, the least first."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of the fields of a message, with their values."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        size = 8 if kind == 1 else 0
        if kind == 2:
            size, at = varint(data, at)
        assert size or kind == 2, kind
        yield tag >> 3, data[at : at + size]
        at += size
        assert at <= len(data)


def attribute(data: bytes) -> tuple[str, Any]:
    """Read an ``AttributeProto``."""
    name, value = "", None
    for number, own in fields(data):
        if number == 1:
            name = own.decode()
        elif number == 3:
            (value,) = struct.unpack("<d", own)
        elif number in (7, 9, 13, 27):
            value = own
        else:
            assert number == 29, number
            value = own.decode()
    return name, value


def node(data: bytes) -> Node:
    """Read a ``Node``."""
    plain: dict[int, int] = {}
    name, attributes = "", dict[str, Any]()
    deps: dict[int, list[int]] = {4: [], 5: []}
    for number, own in fields(data):
        if number == 2:
            name = own.decode()
        elif number in deps:
            packed, at = (own, 0) if isinstance(own, bytes) else (b"", 0)
            while at < len(packed):
                dep, at = varint(packed, at)
                deps[number].append(dep)
        elif number == 10:
            key, value = attribute(own)
            assert key not in attributes
            attributes[key] = value
        else:
            plain[number] = own
    times = plain.get(6, 0), plain.get(7, 0)
    return Node(plain.get(1, 0), name, plain[3], deps[4], deps[5], *times, attributes)


def read_trace(path: Path) -> Trace:
    """Read a file: metadata, then nodes, each after its length."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = varint(data, at)
        messages.append(data[at : at + size])
        at += size
    assert at == len(data)
    first = list(fields(messages[0]))
    (version,) = [own.decode() for number, own in first if number == 1]
    trace = Trace(dict(attribute(own) for number, own in first if number == 2), version)
    for message in messages[1:]:
        own = node(message)
        # What is waited for comes before.
        assert own.id not in trace.nodes
        assert {*own.ctrl_deps} <= {*own.data_deps} <= trace.nodes.keys()
        trace.nodes[own.id] = own
    return trace


def read_folder(folder: Path) -> tuple[dict[int, Trace], dict[str, list[int]]]:
    """Read the traces of a folder by rank, and the groups."""
    traces = {int(path.name.split(".")[1]): read_trace(path) for path in folder.glob("*.et")}
    groups = json.loads((folder / "comm_groups.json").read_text())
    assert len(traces) + 1 == len(list(folder.iterdir()))
    return traces, groups


def replay(traces: dict[int, Trace], groups: dict[str, list[int]], *, by_control: bool) -> None:
    """Give every node its times: it starts when what it waits for is done.

    A collective starts when all of its group have come to it, a receive when the other end sends;
    what is no dependency of a node itself is not asked.
    """
    sends: dict[tuple[int, int, int], Node] = {}
    waiting = {rank: list(trace.nodes.values()) for rank, trace in traces.items()}
    gathered: dict[tuple[str, int], dict[int, Node]] = {}
    counts: dict[tuple[int, str], int] = {}
    turns: dict[int, tuple[str, int]] = {}
    for rank, trace in traces.items():
        for each in trace.nodes.values():
            if each.type == COLLECTIVE:
                group = each.attributes["pg_name"]
                assert rank in groups[group]
                place = counts[rank, group] = counts.get((rank, group), -1) + 1
                turns[id(each)] = group, place
                gathered.setdefault((group, place), {})[rank] = each
            if each.type == SEND:
                assert each.attributes["comm_src"] == rank
                key = rank, each.attributes["comm_dst"], each.attributes["comm_tag"]
                assert key not in sends
                sends[key] = each
    received = set()
    left = sum(map(len, waiting.values()))
    while left:
        before = left
        for rank, nodes in waiting.items():
            trace, kept = traces[rank], []
            for each in nodes:
                deps = each.data_deps if not by_control else [*each.data_deps, *each.ctrl_deps]
                ends = [trace.nodes[dep].done for dep in deps]
                if None in ends:
                    kept.append(each)
                    continue
                each.ready = max((end for end in ends if end is not None), default=0)
                start: int | None = each.ready
                if each.type == RECEIVE:
                    assert each.attributes["comm_dst"] == rank
                    key = each.attributes["comm_src"], rank, each.attributes["comm_tag"]
                    received.add(key)
                    other = sends[key]
                    assert other.attributes["comm_size"] == each.attributes["comm_size"]
                    start = None if other.done is None else max(start or 0, other.done)
                elif each.type == COLLECTIVE:
                    members = gathered[turns[id(each)]]
                    group, _ = turns[id(each)]
                    own = [members[other] for other in groups[group] if other in traces]
                    arrived = [member.ready for member in own]
                    start = None if None in arrived else max(at or 0 for at in arrived)
                if start is None:
                    kept.append(each)
                    continue
                each.done = start + each.duration
                assert start == each.start, each
                left -= 1
            waiting[rank] = kept
        assert left < before, "the ranks wait forever"
    assert received == sends.keys()


def ends(trace: Trace) -> tuple[int, int]:
    """Return when the first forward of a rank begins, less its gather, and its last end."""
    nodes = trace.nodes.values()
    own = [each for each in nodes if each.type != SEND]
    heads = [each.duration for each in own if each.name == "parameter gather" and not each.start]
    first = min(each.start for each in own if each.name != "parameter gather" or each.start)
    return first - sum(heads[:1]), max(each.done or 0 for each in own)
