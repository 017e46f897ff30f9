"""Passes of layers, cut at their collectives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.interchange.layer_pieces import pass_pieces
from phaze_opt.workload.graph import Collective

ALL_REDUCE = Collective("all_reduce", 8)


def scheduled(spans: list[tuple[int, int, bool]]) -> Any:
    """Return a pass whose operators start, take so long, and send or compute."""
    operators = [
        SimpleNamespace(
            id=f"op{place}", collective=ALL_REDUCE if sends else None, gemms=(), vector=()
        )
        for place, (_, _, sends) in enumerate(spans)
    ]
    entries = [
        SimpleNamespace(start_s=float(start), end_s=float(start + length))
        for start, length, _ in spans
    ]
    makespan_s = max(entry.end_s for entry in entries)
    schedule = SimpleNamespace(operators=entries, makespan_s=makespan_s)
    return SimpleNamespace(graph=SimpleNamespace(operators=operators), schedule=schedule)


spans = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.booleans()), min_size=1)


@given(spans, st.sampled_from([0.0, 1.0]))
def test_each_piece_starts_when_another_ends(
    drawn: list[tuple[int, int, bool]], waits: float
) -> None:
    """Also where nothing runs, or something begins beside it; nothing is lost or twice."""
    own = scheduled(drawn)
    makespan_s = own.schedule.makespan_s
    pieces = pass_pieces(own, makespan_s + waits)
    for piece in pieces:
        assert piece.end_s > piece.start_s
        ends = [pieces[place].end_s for place in piece.after]
        assert ends == [piece.start_s] * len(ends) and bool(ends) == (piece.start_s > 0.0)
    sent = sorted((piece.start_s, piece.end_s) for piece in pieces if piece.collective)
    assert sent == sorted((s, s + n) for s, n, sends in drawn if sends and n)
    computes = [piece for piece in pieces if not piece.collective and piece.name != "wait"]
    for start, length, sends in drawn:
        if not sends:
            covered = sum(
                max(0.0, min(piece.end_s, start + length) - max(piece.start_s, start))
                for piece in computes
            )
            assert covered == pytest.approx(length)
    if pieces:
        assert max(piece.end_s for piece in pieces) == makespan_s + waits
