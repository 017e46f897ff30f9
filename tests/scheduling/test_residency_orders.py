import pytest

from phaze_opt.arrays import IntArray
from phaze_opt.scheduling.residency import TensorGraph
from phaze_opt.scheduling.residency_orders import candidate_orders
from tests.scheduling.residency_problems import layer_residency


def held_bytes(graph: TensorGraph, order: IntArray) -> int:
    """Sum bytes × positions held over all tensors."""
    place = {operator: position for position, operator in enumerate(order.tolist())}
    stays = [[place[one] for one in tensor.accesses] for tensor in graph.tensors]
    return sum(
        tensor.bytes * (max(own) - min(own))
        for tensor, own in zip(graph.tensors, stays, strict=True)
    )


@pytest.mark.parametrize("seed", range(6))
def test_orders_keep_the_precedences(seed: int) -> None:
    """Every order is a different topological one, and the first is the given one if it can be."""
    graph = layer_residency(seed, 30, 4, 0).graph
    orders = candidate_orders(graph)
    assert orders[0].tolist() == list(range(30))
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)
    for order in orders:
        place = {operator: position for position, operator in enumerate(order.tolist())}
        assert sorted(place) == list(range(30))
        assert all(place[before] < place[after] for before, after in graph.edges)


@pytest.mark.parametrize("seed", range(6))
def test_some_order_holds_less(seed: int) -> None:
    """Of the orders, one holds tensors for a shorter time than the given one."""
    graph = layer_residency(seed, 30, 4, 0).graph
    given, *others = [held_bytes(graph, order) for order in candidate_orders(graph)]
    assert min(others) < given


def test_a_chain_has_one_order() -> None:
    """Where the precedences leave no choice, there is one order."""
    edges = tuple((i, i + 1) for i in range(9))
    assert len(candidate_orders(TensorGraph(10, edges, ()))) == 1
    with pytest.raises(ValueError, match="cycle"):
        candidate_orders(TensorGraph(10, (*edges, (9, 0)), ()))
