import pytest

from phaze_opt.scheduling.residency_frames import MOST_MASKS, Frame
from tests.scheduling.residency_problems import layer_residency


def masks(frame: Frame) -> int:
    """Count the masks that the search may visit."""
    return sum(1 << int(live).bit_count() for live in frame.live)


@pytest.mark.parametrize(("operators", "width"), [(10, 2), (23, 3), (60, 8)])
def test_frames_stay_small(operators: int, width: int) -> None:
    """No frame exceeds its masks; each order ends with a frame that leaves out no small tensor."""
    for seed in range(3):
        graph = layer_residency(seed, operators, width, 0).graph
        assert all(masks(frame) <= MOST_MASKS for frame in graph.frames)
        for order in graph.orders:
            own = [frame for frame in graph.frames if frame.order is order]
            assert own[0].begin_tensor.size > 0
            sizes = sorted(tensor.bytes for tensor in graph.tensors)
            kept = own[-1].begin_tensor.size
            assert kept == sum(size <= sizes[max(kept - 1, 0)] for size in sizes)


@pytest.mark.parametrize("seed", range(4))
def test_slots_are_never_shared(seed: int) -> None:
    """A slot holds one tensor at a time, from its first to its last operator."""
    graph = layer_residency(seed, 40, 4, 0).graph
    for frame in graph.frames:
        held: dict[int, int] = {}
        for position, operator in enumerate(frame.order.tolist()):
            begins = range(frame.begin_first[position], frame.begin_first[position + 1])
            for number in begins:
                bit = int(frame.begin_bit[number])
                assert bit not in held
                held[bit] = int(frame.begin_tensor[number])
            assert sum(held) == frame.live[position]
            for number in range(frame.access_first[position], frame.access_first[position + 1]):
                tensor, reader = graph.accesses[frame.access[number]]
                assert held[int(frame.access_bit[number])] == tensor
                assert reader == operator
            held = {bit: tensor for bit, tensor in held.items() if bit & frame.kept[position]}
        assert not held


def test_frames_do_not_depend_on_the_chip() -> None:
    """All chips share the frames of a graph, so that more global buffer is never slower."""
    one, other = layer_residency(1, 30, 4, 2**22), layer_residency(1, 30, 4, 2**27)
    for small, large in zip(one.graph.frames, other.graph.frames, strict=True):
        assert small.order.tolist() == large.order.tolist()
        assert small.begin_tensor.tolist() == large.begin_tensor.tolist()
