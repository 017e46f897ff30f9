"""Live memory of a few steps, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.workload.capture.tensors import ResultMemory
from phaze_opt.workload.capture.working_set import Kind, Step, fuse_steps, peak_bytes


def _tensor(name: str, size: int) -> ResultMemory:
    return ResultMemory(name, 0, size, "uint8")


def _chain(kinds: Sequence[Kind], sizes: Sequence[int]) -> tuple[list[ResultMemory], list[Step]]:
    """Return tensors in a row and the steps between them."""
    tensors = [_tensor(f"t{index}", size) for index, size in enumerate(sizes)]
    pairs = zip(kinds, tensors, tensors[1:], strict=False)
    return tensors, [Step(kind, frozenset({a}), (b,)) for kind, a, b in pairs]


def _peak(tensors: list[ResultMemory], steps: list[Step]) -> int:
    return peak_bytes(steps, arriving=tensors[:1], leaving=tensors[-1:], uncounted=())


def test_a_tensor_dies_with_its_last_use() -> None:
    """Two neighbours of a chain are alive at a time."""
    tensors, steps = _chain(["other"] * 3, [5, 40, 30, 20])
    assert _peak(tensors, steps) == 70


def test_a_fused_chain_has_no_inner_tensors() -> None:
    """A product with its elementwise epilogue holds its input and its last result only."""
    tensors, steps = _chain(["product", "elementwise", "elementwise"], [5, 40, 30, 20])
    assert _peak(tensors, fuse_steps(steps, tensors[-1:])) == 25


def test_an_elementwise_result_feeds_a_row() -> None:
    """An elementwise operator runs inside the norm that alone reads it; a product does not."""
    tensors, steps = _chain(["elementwise", "rows"], [10, 40, 10])
    assert _peak(tensors, fuse_steps(steps, tensors[-1:])) == 20
    tensors, steps = _chain(["product", "rows"], [10, 40, 10])
    assert _peak(tensors, fuse_steps(steps, tensors[-1:])) == 50


def test_what_leaves_is_written() -> None:
    """A result that others read is in memory, fused or not."""
    tensors, steps = _chain(["elementwise", "elementwise"], [10, 40, 10])
    assert _peak(tensors, fuse_steps(steps, tensors[1:])) == 50


def test_two_readers_keep_a_tensor_in_memory() -> None:
    """A tensor with two readers is written once and read twice."""
    x, y, a, b = (_tensor(name, 10) for name in "xyab")
    steps = [
        Step("elementwise", frozenset({x}), (y,)),
        Step("elementwise", frozenset({y}), (a,)),
        Step("elementwise", frozenset({y}), (b,)),
    ]
    assert fuse_steps(steps, [a, b]) == steps


@given(
    st.lists(st.sampled_from(["elementwise", "rows", "product", "other"]), min_size=1, max_size=8),
    st.data(),
)
def test_fusing_a_chain_never_needs_more(kinds: list[Kind], data: st.DataObject) -> None:
    """Along a chain fusion takes inner tensors away; what goes in and comes out stays."""
    sizes = data.draw(st.lists(st.integers(0, 50), min_size=len(kinds) + 1, max_size=9))
    tensors, steps = _chain(kinds, sizes[: len(kinds) + 1])
    fused = fuse_steps(steps, tensors[-1:])
    assert _peak(tensors, fused) <= sum(tensor.size_bytes for tensor in tensors)
    assert _peak(tensors, fused) >= max(tensors[0].size_bytes, tensors[-1].size_bytes)
    assert {base for step in fused for base in step.writes} <= set(tensors)
