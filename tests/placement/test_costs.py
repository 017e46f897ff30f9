from dataclasses import replace

import pytest
from hypothesis import given, settings

from phaze_opt.degrees import Degrees
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.term import Term
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import PASS_COLUMNS, local_parameters
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.chain_bytes import chain_bytes
from phaze_opt.placement.costs import DegreeRuns, stage_costs
from phaze_opt.placement.memory import stage_memory
from phaze_opt.placement.placement_problem import PlacementProblem
from tests.placement.strategies import problems
from tests.placement.test_solve_placement import chain

MESSAGE = Term("message", 0.5, 1 / 4.0, (1.0,))


def runs(problem: PlacementProblem, tensor: int) -> DegreeRuns:
    """Return the runs of layers at one tensor degree."""
    return DegreeRuns(problem, tensor, chain_bytes(problem, tensor))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_tables_agree_with_the_definitions(problem: PlacementProblem) -> None:
    """Every entry is what one stage costs and holds by itself."""
    tensor = min(problem.layers)
    layers, optimizer = problem.layers[tensor], OPTIMIZERS[problem.training.optimizer]
    costs = stage_costs(runs(problem, tensor), [MESSAGE])
    sums = {name: costs.runs.sums(name) for name in PASS_COLUMNS}
    for i in range(len(layers)):
        for j in range(i + 1, len(layers) + 1):
            held = layers[i:j]
            assert sums["forward.seconds"][i, j] == pytest.approx(
                sum(x.passes.forward.seconds for x in held)
            )
            assert all(costs.runs.sum(name, (i, j)) == sums[name][i, j] for name in sums)
            assert costs.load_s[i, j] == costs.forward_work_s[i, j] + costs.backward_work_s[i, j]
            assert costs.held.parameters[i, j] == local_parameters(held)
            limit = int(costs.held.in_flight_limit[i, j])
            if sum(layer.stash_bytes for layer in held):
                over = stage_memory(held, limit + 1, optimizer).total
                assert over > problem.hbm_usable_bytes
            if limit >= 0:
                fits = min(limit, 1000)
                assert stage_memory(held, fits, optimizer).total <= problem.hbm_usable_bytes


def test_receives_on_a_chain() -> None:
    """An inner stage receives one activation and one gradient, the outer ones one of them."""
    costs = stage_costs(runs(chain(), 1), [MESSAGE])
    message_s = 0.5 + 8 / 4.0
    assert costs.received.activation_s[0, 2] == 0.0
    assert costs.received.gradient_s[0, 2] == message_s
    assert costs.received.activation_s[2, 4] == costs.received.gradient_s[2, 4] == message_s
    assert costs.received.gradient_s[4, 6] == 0.0


def test_receives_over_a_skip() -> None:
    """A tensor used by a later stage too is received there as well, and its gradient comes back."""
    problem = replace(chain(), edges=(*chain().edges, (0, 4)))
    plain, skip = (stage_costs(runs(p, 1), [MESSAGE]) for p in (chain(), problem))
    message_s = 0.5 + 8 / 4.0
    # Layers 4 and 5 need the output of layer 0 beside that of layer 3.
    assert skip.received.activation_s[4, 6] == plain.received.activation_s[4, 6] + message_s
    # A stage in between passes nothing on: tensors go straight to where they are used.
    assert skip.received.activation_s[2, 4] == plain.received.activation_s[2, 4]
    # Layers 0 to 2 get the gradient of layer 0 back from the stage that holds layer 4.
    assert skip.received.gradient_s[0, 3] == plain.received.gradient_s[0, 3] + message_s
    assert skip.received.gradient_s[0, 5] == plain.received.gradient_s[0, 5]


def test_messages_between_stages_share_the_links_of_a_torus() -> None:
    """Stages two rows apart pass through one another; neighbouring rows, and a switch, do not."""
    ring = NetworkLevel(400.0, 0.0, "torus", axes=(4, 4))
    on_torus = CandidateCosts(replace(chain(), cluster=Cluster("torus", (ring,), 16)))
    one_row, two_rows = Candidate.of(Degrees(4, 4, 1)), Candidate.of(Degrees(2, 8, 1))
    assert on_torus.message(one_row).s_per_byte == 1 / 100.0
    assert on_torus.message(two_rows).s_per_byte == 1 / 50.0
    here, apart = on_torus.stages(one_row), on_torus.stages(two_rows)
    assert apart.received.gradient_s[0, 1] == 2.0 * here.received.gradient_s[0, 1]
    switch = NetworkLevel(400.0, 0.0, "switch")
    on_switch = CandidateCosts(replace(chain(), cluster=Cluster("switch", (switch,), 16)))
    assert on_switch.message(two_rows).s_per_byte == 1 / 400.0
