"""Laws of sending tokens to the devices of their experts."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phaze_opt.choices import Dispatcher
from phaze_opt.network.presets import load_cluster
from phaze_opt.network.token_exchange import destinations, exchange_cost
from phaze_opt.workload.graph import TokenExchange

exchanges = st.builds(
    TokenExchange,
    tokens=st.integers(1, 2**17),
    top_k=st.integers(1, 8),
    experts=st.sampled_from([64, 128, 256]),
    devices=st.sampled_from([2, 4, 8, 16, 32, 64]),
    row_bytes=st.sampled_from([1024, 4096, 14336]),
    dispatcher=st.sampled_from(get_args(Dispatcher)),
    plans=st.booleans(),
)
clusters = st.sampled_from(["dgx-h100", "nvl72", "tpuv4-torus", "flat-4GiB"])


@pytest.mark.parametrize(
    ("groups", "experts", "top_k"), [(8, 64, 6), (8, 256, 8), (2, 8, 2), (32, 128, 8), (4, 4, 4)]
)
def test_destinations_are_those_of_drawn_tokens(groups: int, experts: int, top_k: int) -> None:
    """Uniformly drawn experts lie on as many groups, on average."""
    draws, rng = 20_000, np.random.default_rng(1)
    chosen = rng.random((draws, experts)).argsort(axis=1)[:, :top_k] // (experts // groups)
    counts = np.array([len(np.unique(row)) for row in chosen])
    error = counts.std() / np.sqrt(draws)
    assert destinations(groups, experts, top_k) == pytest.approx(
        counts.mean(), abs=5 * error + 1e-9
    )


@pytest.mark.parametrize("units", [2, 4, 8, 16, 32])
@pytest.mark.parametrize(("groups", "top_groups"), [(8, 4), (8, 1), (4, 3)])
def test_destinations_of_chosen_groups_are_those_of_drawn_tokens(
    units: int, groups: int, top_groups: int
) -> None:
    """Groups are drawn first, and experts in them; no token goes to more groups than it may."""
    experts, top_k, draws, rng = 64, 6, 20_000, np.random.default_rng(2)
    open_groups = rng.random((draws, groups)).argsort(axis=1)[:, :top_groups]
    order = rng.random((draws, experts))
    of_expert = np.arange(experts) * groups // experts
    order[~(of_expert == open_groups[:, :, None]).any(axis=1)] = 2.0
    chosen = order.argsort(axis=1)[:, :top_k] // (experts // units)
    counts = np.array([len(np.unique(row)) for row in chosen])
    error = counts.std() / np.sqrt(draws)
    found = destinations(units, experts, top_k, groups, top_groups)
    assert found == pytest.approx(counts.mean(), abs=5 * error + 1e-9)
    assert found <= top_groups * max(1, units // groups)


@given(st.sampled_from([1, 2, 4, 8, 64]), st.integers(1, 64))
def test_a_token_has_no_more_destinations_than_groups_or_experts(groups: int, top_k: int) -> None:
    """One of either is one destination, and more groups are no fewer."""
    found = destinations(groups, 64, top_k)
    assert 1.0 - 1e-9 <= found <= min(groups, top_k) + 1e-9
    assert found <= destinations(64, 64, top_k) + 1e-9
    assert destinations(groups, 64, 1) == pytest.approx(1.0)


@given(exchanges, clusters)
def test_one_device_sends_nothing(exchange: TokenExchange, cluster: str) -> None:
    """Its tokens stay, whatever would send them."""
    cost = exchange_cost(replace(exchange, devices=1), load_cluster(cluster, 64), 1)
    assert (cost.time_s, sum(cost.bytes_by_level)) == (0.0, 0.0)


@given(exchanges, clusters, st.sampled_from([1, 2]))
def test_faster_dispatchers_are_never_slower(
    exchange: TokenExchange, cluster: str, stride: int
) -> None:
    """Links alone take least, and fewer constants take less."""
    network = load_cluster(cluster, 128)
    by_name: dict[str, Any] = {
        name: exchange_cost(replace(exchange, dispatcher=name), network, stride)
        for name in ("deepep", "hybridep", "ideal")
    }
    assert by_name["ideal"].time_s <= by_name["hybridep"].time_s <= by_name["deepep"].time_s
    assert by_name["ideal"].bytes_by_level == by_name["deepep"].bytes_by_level


@given(exchanges, clusters, st.integers(1, 5))
def test_more_takes_longer(exchange: TokenExchange, cluster: str, factor: int) -> None:
    """More tokens, longer ones, or more experts of each; and no copy is sent twice."""
    assume(exchange.top_k * factor <= exchange.experts)
    network = load_cluster(cluster, 128)
    cost = exchange_cost(exchange, network, 1)
    assert len(cost.bytes_by_level) == len(network.levels)
    assert cost.time_s > 0.0
    for name in ("tokens", "row_bytes", "top_k"):
        more = replace(exchange, **{name: factor * getattr(exchange, name)})
        assert exchange_cost(more, network, 1).time_s >= cost.time_s * (1.0 - 1e-9)
    if exchange.dispatcher != "nccl":
        size_bytes = exchange.tokens * exchange.row_bytes
        for sent_bytes in cost.bytes_by_level:
            assert sent_bytes <= size_bytes * min(exchange.devices, exchange.top_k) * (1 + 1e-9)


@given(exchanges, clusters)
def test_only_a_first_dispatch_is_laid_out(exchange: TokenExchange, cluster: str) -> None:
    """A backward, and a combine, send as the forward's dispatch did."""
    network = load_cluster(cluster, 128)
    first, again = (
        exchange_cost(replace(exchange, plans=plans), network, 1).time_s for plans in (True, False)
    )
    assert first >= again
    assert first > again or exchange.dispatcher != "deepep"
