"""The graphs of a layer that run."""

from __future__ import annotations

import pytest

from phaze_opt.choices import Recompute
from phaze_opt.passes.graphs import graphs_of, runs_again
from phaze_opt.training import Training
from tests.passes.test_estimates import workload


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_runs_again(recompute: Recompute) -> None:
    """Nothing, what the capture says, or the forward; it is one of the graphs that are named."""
    training = Training(8, recompute=recompute)
    for layer in workload().variants[0].layers:
        graphs = graphs_of(layer, training)
        assert (graphs["forward"], graphs["backward"]) == (layer.forward, layer.backward)
        again = {"none": None, "selective": layer.selective_recompute, "full": layer.forward}
        assert runs_again(layer, graphs, training) is again[recompute]
