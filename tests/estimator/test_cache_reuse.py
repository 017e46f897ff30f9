"""Reuse distances against a cache that is simulated byte by byte."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.estimator.cache_reuse import CACHE_SHARE, reads_again
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead
from tests.workload.graphs import Moved, graph_of

Byte = tuple[str, int, int]


@dataclass(frozen=True)
class Program:
    """A graph, and the bytes that each of its operators touches."""

    graph: OperatorGraph
    touched: tuple[frozenset[Byte], ...]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw operators with bytes of their own, and tensors that they hand over or read together."""
    count = draw(st.integers(2, 7))
    alone = [draw(st.integers(0, 6)) for _ in range(count)]
    touched = [{("own", i, byte) for byte in range(size)} for i, size in enumerate(alone)]
    read, written = [0] * count, list(alone)
    tensors = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 6))
        users = sorted(draw(st.sets(st.integers(0, count - 1), min_size=2)))
        is_input = draw(st.booleans())
        readers = users if is_input else users[1:]
        parts = {
            user: size if draw(st.booleans()) else draw(st.integers(1, size)) for user in readers
        }
        for user, part in parts.items():
            first = draw(st.integers(0, size - part))
            touched[user] |= {("shared", number, byte) for byte in range(first, first + part)}
            read[user] += part
        if not is_input:
            touched[users[0]] |= {("shared", number, byte) for byte in range(size)}
            written[users[0]] += size
        writers = () if is_input else ((users[0], size),)
        reads = tuple(TensorRead(user, part) for user, part in parts.items())
        tensors.append(Tensor(size, "uint8", writers=writers, readers=reads))
    moved = [Moved(Operator(f"operator{i}"), read[i], written[i]) for i in range(count)]
    return Program(graph_of(moved, (), tensors), tuple(map(frozenset, touched)))


def misses(program: Program, size: int, seed: int) -> list[set[Byte]]:
    """Run a program beside a cache of some bytes; return what each operator does not find there."""
    generator = np.random.default_rng(seed)
    cache: OrderedDict[Byte, None] = OrderedDict()
    missed = []
    for bytes_of in program.touched:
        absent: set[Byte] = set()
        listed = sorted(bytes_of)
        for byte in (listed[place] for place in generator.permutation(len(listed))):
            if byte in cache:
                cache.move_to_end(byte)
                continue
            absent.add(byte)
            cache[byte] = None
            if len(cache) > size:
                cache.popitem(last=False)
        missed.append(absent)
    return missed


@given(programs(), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_a_served_read_hits_in_whatever_order_operators_touch_their_bytes(
    program: Program, size: int, seed: int
) -> None:
    """The distance bounds how far apart two touches of a byte can be."""
    served = reads_again(program.graph).served_by(size / CACHE_SHARE)
    missed = misses(program, size, seed)
    for tensor, reader in zip(served.tensor.tolist(), served.reader.tolist(), strict=True):
        assert not any(kind == "shared" and own == tensor for kind, own, _ in missed[reader])


@given(programs(), st.integers(1, 200), st.integers(1, 200))
def test_a_larger_cache_serves_what_a_smaller_one_serves(
    program: Program, first: int, other: int
) -> None:
    """Only the distance decides."""
    reuse = reads_again(program.graph)
    fewer, more = (
        set(zip(served.tensor.tolist(), served.reader.tolist(), strict=True))
        for served in (reuse.served_by(min(first, other)), reuse.served_by(max(first, other)))
    )
    assert fewer <= more


def test_what_a_chain_reads_again() -> None:
    """Two operators of 10 and 30 bytes beside what they hand over, another one between them."""
    operators = (
        Moved(Operator("first"), 10, 100),
        Moved(Operator("between"), 0, 7),
        Moved(Operator("second"), 100, 30),
        Moved(Operator("part"), 50),
        Moved(Operator("last"), 100),
    )
    readers = (TensorRead(2, 100), TensorRead(3, 50), TensorRead(4, 100))
    tensor = Tensor(100, "uint8", writers=((0, 100),), readers=readers)
    graph = graph_of(operators, (), (tensor,))
    reuse = reads_again(graph)
    assert reuse.reader.tolist() == [2, 3, 4]
    assert reuse.source.tolist() == [0, 2, 2]  # a part of a tensor is nobody's source
    assert reuse.distance_bytes.tolist() == [10 + 100 + 7 + 30, 30 + 100, 30 + 100]
    assert reuse.served_by(4 * 147).reader.tolist() == [2, 3, 4]
    assert reuse.served_by(4 * 147 - 1).reader.tolist() == [3, 4]
    assert reuse.served_by(0).reader.size == 0
