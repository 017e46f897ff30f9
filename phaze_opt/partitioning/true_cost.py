"""A file of the ``phaze`` format as a placement problem under the true cost.

The file states no HBM bandwidth, so gradient accumulation and the optimizer step take no time; all
other costs count as in a problem built from a captured model. Graphs with branches are split along
the topological order of the reader.
"""

from __future__ import annotations

import math

from phaze_opt.choices import OptimizerName
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.partitioning.phaze_format import PhazeProblem
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.training import Training

_OPTIMIZER_NAMES: dict[str, OptimizerName] = {"SGD": "sgd", "Adam": "adam"}


def true_cost_problem(problem: PhazeProblem) -> PlacementProblem:
    """Return the problem that `phaze_opt.placement.solve_placement.solve_placement` takes.

    Parameters
    ----------
    problem
        The file's content; its parameter sizes are those of bf16 weights.
    """
    optimizer = _OPTIMIZER_NAMES[problem.optimizer]
    level = NetworkLevel(problem.bandwidth_bytes_per_s, 0.0, "switch")
    pairs = {(e.source, e.destination) for edges in problem.edges.values() for e in edges}
    return PlacementProblem(
        layers={tensor: _layers(problem, tensor) for tensor in problem.nodes},
        edges=tuple(sorted(pairs)),
        cluster=Cluster("phaze file", (level,), problem.devices),
        training=Training(
            global_batch=problem.microbatches,
            recompute="full" if problem.recompute else "none",
            optimizer=optimizer,
        ),
        hbm_usable_bytes=problem.memory_bytes,
        hbm_bytes_per_s=math.inf,
    )


def _layers(problem: PhazeProblem, tensor: int) -> tuple[LayerCost, ...]:
    """Return the costs of the layers at one tensor degree."""
    nodes, edges = problem.nodes[tensor], problem.edges[tensor]
    weight_bytes = OPTIMIZERS[_OPTIMIZER_NAMES[problem.optimizer]].weight_bytes
    output, entering = [0.0] * len(nodes), [0.0] * len(nodes)
    for edge in edges:
        output[edge.source] = max(output[edge.source], edge.bytes)
        entering[edge.destination] += edge.bytes
    return tuple(
        LayerCost(
            name=str(node.id),
            passes=LayerPasses.of(
                node.forward_s, node.backward_s, node.forward_s if problem.recompute else 0.0
            ),
            parameters=math.ceil(node.parameter_bytes / weight_bytes),
            tied_parameters=0,
            stash_bytes=math.ceil(entering[i] if problem.recompute else node.activation_bytes),
            transient_bytes=math.ceil(node.activation_bytes) if problem.recompute else 0,
            output_bytes=math.ceil(output[i]),
        )
        for i, node in enumerate(nodes)
    )
