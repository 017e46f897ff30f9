"""What stages hold: that of their layers, found once for designs that differ in seconds only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.degrees import Degrees
from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.held_stages import held_stages
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.memory import stage_memory
from phaze_opt.placement.pipeline import interleaved_in_flight
from phaze_opt.placement.placement_problem import PlacementProblem
from tests.placement.strategies import problems, scaled


@given(problems(), st.data())
def test_a_stage_holds_what_its_layers_do(problem: PlacementProblem, data: st.DataObject) -> None:
    """Memory, parameters and shared ones are counted layer by layer, in chunks too."""
    tensor = data.draw(st.sampled_from(sorted(problem.layers)))
    layers = problem.layers[tensor]
    chunks = data.draw(st.sampled_from([1, 1, 2, 3]).filter(lambda count: count <= len(layers)))
    stages = data.draw(st.integers(1, len(layers) // chunks))
    cuts = sorted(data.draw(st.permutations(range(1, len(layers))))[: chunks * stages - 1])
    candidate = Candidate.of(Degrees(stages, data.draw(st.integers(1, 4)), tensor))
    layout = Layout.of_starts(candidate, np.array([0, *cuts]), len(layers), chunks)
    costs = CandidateCosts(problem)
    microbatches, shards = costs.microbatches(candidate.data), costs.shards(candidate.data)
    in_flight = [float(min(stages - stage, microbatches)) for stage in range(stages)]
    if problem.training.pipeline_schedule == "gpipe":
        in_flight = [float(microbatches)] * stages
    if chunks > 1:
        in_flight = (interleaved_in_flight(stages, microbatches, chunks) / chunks).tolist()
    by_stages = held_stages(costs, layout)
    assert len(by_stages) == stages
    for stage, (held, microbatches_held) in enumerate(zip(by_stages, in_flight, strict=True)):
        own = layout.layers(stage, layers)
        assert held.memory == stage_memory(own, microbatches_held, costs.optimizer, shards)
        assert held.parameters == local_parameters(own)
        tied = [layer.tied_parameters for layer in own]
        shared = sum(layer.tied_parameters for layer in layers) > sum(tied)
        assert held.shared_parameters == (max(tied) if shared else 0)
    faster = replace(
        problem,
        layers={
            tensor_degree: tuple(
                [layer.with_fields(passes=scaled(layer.passes, 0.5)) for layer in own]
            )
            for tensor_degree, own in problem.layers.items()
        },
    )
    assert held_stages(CandidateCosts(faster), layout) is by_stages
