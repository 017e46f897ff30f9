"""Pairs of microbatches: one's exchanges of tokens beside the other's compute."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.paired import PARTS, core_share, exchanges_s, paired_s
from phaze_opt.training import Training
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.zoo import load_workload

seconds = st.floats(0.0, 10.0)


@given(seconds, seconds, st.floats(0.0, 0.9), seconds)
def test_a_pair_takes_the_larger(
    compute_s: float, exchange_s: float, share: float, more_s: float
) -> None:
    """Of compute and exchanges, never more than both; and no less with more work."""
    both_s = compute_s + exchange_s
    pair_s = paired_s(both_s, exchange_s, share, 0.0)
    assert max(compute_s, exchange_s) - 1e-9 <= pair_s <= both_s
    assert pair_s <= paired_s(both_s + more_s, exchange_s, share, 0.0)
    assert pair_s <= paired_s(both_s, exchange_s, min(share + 0.05, 0.95), 0.0) + 1e-9
    assert paired_s(both_s, exchange_s, share, more_s) == max(pair_s, more_s)
    if exchange_s == 0.0:
        assert pair_s == both_s


def test_parts_are_wholes() -> None:
    """Both passes together take the time of the pair."""
    assert all(sum(parts.values()) == pytest.approx(1.0) for parts in PARTS.values())


def test_a_trace_of_pairs() -> None:
    """DeepSeek's own: 124.3 ms of products on 112 of 132 multiprocessors beside 114.5 ms."""
    union_s = paired_s(124.3e-3 * 112 / 132 + 114.5e-3, 114.5e-3, 20 / 132, 0.0)
    assert union_s == pytest.approx(128.5e-3, rel=0.04)


@pytest.mark.parametrize("dispatcher", ["nccl", "deepep", "hybridep", "ideal"])
def test_only_layers_with_experts_exchange(dispatcher: Any) -> None:
    """In pairs; and the dispatcher takes its multiprocessors from what runs beside it."""
    cluster = load_cluster("dgx-h100", 8)
    training = Training(64, 1, expert_parallel=8, dispatcher=dispatcher, overlap="experts")
    variant = with_experts_shared_out(load_workload("mixtral-8x7b").variants[0], training)
    sent_s = exchanges_s(variant, training, cluster)
    experts = [bool(layer.routed_parameters) for layer in variant.layers]
    assert [each > 0.0 for each in sent_s] == experts
    taken = core_share(training, cluster, np.array([0.1, 0.2])).tolist()
    expected = {"nccl": [0.1, 0.2], "deepep": [20 / 132] * 2, "hybridep": [16 / 132] * 2}
    assert taken == expected.get(dispatcher, [0.0, 0.0])
    apart = Training(64, 1, expert_parallel=8, dispatcher=dispatcher)
    assert not any(exchanges_s(variant, apart, cluster))
