"""Orders of ranks with some replicas inside the stages and others outside."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import CollectiveName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import collective_terms, split_terms
from phaze_opt.network.level_values import with_level_values
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.candidates import Candidate, given_candidates, rank_orders
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import place_again, solve_placement
from phaze_opt.placement.synchronisation import with_same_experts
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.placement.test_least import training_problems

TINY = "gpt:layers=8,hidden=1024,heads=8,sequence=512,vocab=8000"
SOLVE = Training(64, rank_order="solve")
kinds: st.SearchStrategy[CollectiveName] = st.sampled_from(
    ["all_reduce", "reduce_scatter", "all_gather"]
)


@settings(max_examples=40, deadline=None)
@given(training_problems())
def test_more_orders_are_never_slower(problem: PlacementProblem) -> None:
    """Whatever else is asked for; and the answer can be placed again."""
    two, solve = (
        replace(problem, training=replace(problem.training, rank_order=order))
        for order in ("two", "solve")
    )
    try:
        before = solve_placement(two)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve_placement(solve)
        return
    after = solve_placement(solve)
    assert after.time_per_batch_s <= before.time_per_batch_s
    assert (after.replicas_inside > 0) == (after.rank_order == "tensor-data-pipeline-data")
    again = place_again(solve, after)
    assert again.time_per_batch_s == pytest.approx(after.time_per_batch_s)
    assert (again.rank_order, again.replicas_inside) == (after.rank_order, after.replicas_inside)


def racks() -> Cluster:
    """Return nodes of eight whose leaf switches join two of them, with narrow links upwards."""
    stated = {"network.1.topology": "fat-tree", "network.1.taper": 8.0}
    return with_level_values(
        load_cluster("dgx-h100", 64), {**stated, "network.1.leaf_devices": 16}, ""
    )


def test_replicas_inside_fill_units_and_leaves() -> None:
    """Or share experts and sequences, which stay together."""
    orders = rank_orders(racks(), SOLVE, 2)
    assert [inside for _, inside in orders] == [0, 0, 4, 8]
    mixture = replace(SOLVE, expert_parallel=8)
    assert [inside for _, inside in rank_orders(racks(), mixture, 2)] == [0, 8]
    assert [inside for _, inside in rank_orders(racks(), mixture, 1)] == [0, 8, 16]
    assert rank_orders(racks(), replace(SOLVE, rank_order="two"), 2) == orders[:2]
    assert rank_orders(load_cluster("flat-4GiB", 64), SOLVE, 1) == orders[:1]


def test_strides() -> None:
    """Tensor-parallel groups, replicas inside, stages, replicas outside."""
    candidates = given_candidates(Degrees(2, 16, 2), racks(), SOLVE)
    assert [each.inside for each in candidates] == [0, 0, 4, 8]
    split = candidates[2]
    assert (split.stride("data"), split.stride("pipeline"), split.outside_stride) == (2, 8, 16)
    assert Candidate.of(Degrees(2, 16, 2)).outside_stride == 0
    assert all(not each.inside for each in given_candidates(Degrees(1, 16, 2), racks(), SOLVE))
    sharing = replace(SOLVE, expert_parallel=4)
    assert with_same_experts(sharing, 2, 16, 2, 8, 32) == (4, 8, 2, 32)


@given(kinds, st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_groups_of_groups_send_as_much_as_one_group(
    kind: CollectiveName, inside: int, outside: int
) -> None:
    """On one switch, where they stand together or not, the bytes are those of a ring."""
    cluster = Cluster("flat", (NetworkLevel(1e9, 0.0, "switch"),), 256)
    whole = min(t.s_per_byte for t in collective_terms(kind, inside * outside, cluster))
    terms = split_terms(kind, inside, 1, outside, 8 * inside, cluster)
    assert min(term.s_per_byte for term in terms) == pytest.approx(whole)
    assert min(t.all_sent_per_byte for t in terms) == pytest.approx(whole * 1e9)


def test_an_order_of_its_own_is_faster_where_levels_ask_for_it() -> None:
    """Replicas of a rack reduce first; then few of them have to leave it. Without it no change."""
    cluster, chip = racks(), load_accelerator("h100")
    workload = load_workload(TINY, tensor_parallel=(1,), microbatch=(1,))
    training = Training(512, 1, optimizer="adam", overlap="none", zero=0)
    two = evaluate(workload, chip, cluster, training, (4, 16, 1))
    solve = evaluate(workload, chip, cluster, replace(training, rank_order="solve"), (4, 16, 1))
    assert two.placement and solve.placement
    assert solve.placement.rank_order == "tensor-data-pipeline-data"
    assert solve.placement.replicas_inside == 8
    assert solve.throughput_samples_per_s > two.throughput_samples_per_s
    assert two.placement.replicas_inside == 0


def test_groups_of_zero_stand_together() -> None:
    """One sentence says so."""
    with pytest.raises(InputError, match="rank_order is solve"):
        replace(SOLVE, zero=3, zero_group=8)
