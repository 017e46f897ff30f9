"""Random placement problems, small enough to try every answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from phaze_opt.choices import OptimizerName
from phaze_opt.degrees import Degrees
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import collective_s
from phaze_opt.network.message import send_receive_s
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, PassCost, local_parameters
from phaze_opt.placement.memory import stage_memory
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.training import Training

seconds = st.floats(0.01, 1.0)
sizes = st.integers(0, 100)


@st.composite
def layer_costs(
    draw: st.DrawFn, count: int, tensor_degrees: tuple[int, ...], *, forward_share: float | None
) -> dict[int, tuple[LayerCost, ...]]:
    """Draw layers at several tensor degrees; a forward share ties the backward to the forward."""
    base = [draw(st.tuples(seconds, seconds, sizes, sizes, sizes, sizes)) for _ in range(count)]
    if count > 2 and draw(st.booleans()):
        base[1:-1] = [base[1]] * (count - 2)
    tied = draw(st.integers(0, 30)) if count > 1 else 0
    return {
        tensor_degree: tuple(
            LayerCost(
                name=f"layer.{index}",
                passes=LayerPasses.of(
                    forward / tensor_degree**0.8,
                    (forward / forward_share - forward if forward_share else backward)
                    / tensor_degree**0.8,
                ),
                parameters=parameters // tensor_degree + (tied if index in (0, count - 1) else 0),
                tied_parameters=tied if index in (0, count - 1) else 0,
                stash_bytes=stash // tensor_degree,
                transient_bytes=transient,
                output_bytes=output,
            )
            for index, (forward, backward, parameters, stash, transient, output) in enumerate(base)
        )
        for tensor_degree in tensor_degrees
    }


def backward_s(layer: LayerCost) -> float:
    """Return the seconds of what runs of a layer in a backward."""
    return layer.passes.backward.seconds + layer.passes.recompute.seconds


def scaled(passes: LayerPasses, scale: float) -> LayerPasses:
    """Return passes that take so many times as long."""
    return LayerPasses(
        *[layer_pass._replace(seconds=layer_pass.seconds * scale) for layer_pass in passes]
    )


def with_link(passes: LayerPasses, forward: float, backward: float) -> LayerPasses:
    """Return passes of which some shares use the network."""
    return passes._replace(
        forward=PassCost(passes.forward.seconds, forward * passes.forward.seconds),
        backward=PassCost(passes.backward.seconds, backward * passes.backward.seconds),
    )


@st.composite
def problems(
    draw: st.DrawFn,
    most_layers: int = 6,
    most_devices: int = 16,
    forward_share: float | None = None,
) -> PlacementProblem:
    """Draw a chain with memory limits on a flat cluster."""
    count = draw(st.integers(1, most_layers))
    tensor_degrees = draw(st.sampled_from([(1,), (1, 2), (2, 4), (1, 2, 4)]))
    level = NetworkLevel(
        draw(st.sampled_from([10.0, 1e3, 1e6])), draw(st.sampled_from([0.0, 0.01])), "switch"
    )
    global_batch = draw(st.integers(1, 40))
    optimizer: OptimizerName = draw(st.sampled_from(["sgd", "adam"]))
    problem = PlacementProblem(
        layers=draw(layer_costs(count, tensor_degrees, forward_share=forward_share)),
        edges=tuple((index, index + 1) for index in range(count - 1)),
        cluster=Cluster("drawn", (level,), draw(st.integers(1, most_devices))),
        training=Training(
            global_batch,
            draw(st.integers(1, min(3, global_batch))),
            optimizer=optimizer,
            overlap="none",
            fused_accumulation=draw(st.booleans()),
        ),
        hbm_usable_bytes=draw(st.sampled_from([500.0, 1000.0, 2000.0, 1e9])),
        hbm_bytes_per_s=draw(st.sampled_from([100.0, 1e4])),
        step_parameters_per_s=draw(st.sampled_from([50.0, math.inf])),
        accumulation_parameters_per_s=draw(st.sampled_from([50.0, math.inf])),
    )
    return accumulating(problem, draw(st.sampled_from([0.5, 1.0])))


def accumulating(problem: PlacementProblem, part: float) -> PlacementProblem:
    """Return a problem whose products add up a part of every layer's gradients, if any do."""
    part = part if problem.training.products_accumulate else 0.0

    def of_products(layer: LayerCost) -> LayerCost:
        return replace(layer, accumulated_parameters=int(part * layer.parameters))

    layers = {degree: tuple(map(of_products, own)) for degree, own in problem.layers.items()}
    return replace(problem, layers=layers)


@st.composite
def with_experts(draw: st.DrawFn, drawn: st.SearchStrategy[PlacementProblem]) -> PlacementProblem:
    """Draw a problem; in some, part of every layer is routed experts that are shared out."""
    problem, experts = draw(drawn), draw(st.sampled_from([1, 2, 4]))
    width = draw(st.sampled_from([0, 1, 2]))
    training = replace(problem.training, expert_parallel=experts, expert_tensor_parallel=width)
    part = draw(st.sampled_from([1, 2]))

    def shared_out(layer: LayerCost, degree: int) -> LayerCost:
        holding = experts * (width or degree)
        routed = part * (layer.parameters - layer.tied_parameters) // 2
        routed *= holding != degree
        elsewhere = math.ceil(routed * holding / degree) - routed
        return replace(layer, routed_parameters=routed, elsewhere_parameters=elsewhere)

    layers = {
        degree: tuple(shared_out(layer, degree) for layer in own)
        for degree, own in problem.layers.items()
    }
    return replace(problem, layers=layers, training=training)


def all_degrees(problem: PlacementProblem) -> Iterator[Degrees]:
    """Yield every (pipeline, data, tensor) that the devices and the batch allow."""
    training = problem.training
    for tensor, layers in problem.layers.items():
        first, step = training.fewest_replicas(tensor), training.expert_step(tensor)
        for data in range(first, problem.cluster.devices // tensor + 1, step):
            if data * training.microbatch > training.global_batch:
                break
            for pipeline in range(1, len(layers) + 1):
                if pipeline * data * tensor <= problem.cluster.devices:
                    yield Degrees(pipeline, data, tensor)


def all_splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Yield the first layers of every split into so many stages."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield (0, *cuts)


def message_s(problem: PlacementProblem, size_bytes: int, tensor: int) -> float:
    """Return the time of a message, whole or split over the tensor-parallel group."""
    whole_s = send_receive_s(size_bytes, problem.cluster)
    if tensor == 1:
        return whole_s
    gather_s = collective_s("all_gather", size_bytes, tensor, problem.cluster)
    return min(whole_s, send_receive_s(size_bytes / tensor, problem.cluster) + gather_s)


def closed_form(
    problem: PlacementProblem, degrees: Degrees, starts: tuple[int, ...]
) -> float | None:
    """Return the closed form of a batch's time straight from its definition; None if too large."""
    pipeline, data, tensor = degrees[:3]
    layers, training = problem.layers[tensor], problem.training
    optimizer = OPTIMIZERS[training.optimizer]
    microbatches = -(-training.global_batch // (data * training.microbatch))
    all_tied = sum(layer.tied_parameters for layer in layers)
    loads, finishes, before = [], [], 0.0
    for stage, (i, j) in enumerate(zip(starts, (*starts[1:], len(layers)), strict=True)):
        held = layers[i:j]
        in_flight = min(pipeline - stage, microbatches)
        if stage_memory(held, in_flight, optimizer).total > problem.hbm_usable_bytes:
            return None
        parameters = local_parameters(held)
        forward = sum(layer.passes.forward.seconds for layer in held)
        backward = sum(backward_s(layer) for layer in held)
        if microbatches > 1:
            beside = sum(layer.parameters - layer.accumulated_parameters for layer in held)
            backward += min(beside, parameters) * problem.accumulation_s_per_parameter
        if i > 0:
            forward += message_s(problem, layers[i - 1].output_bytes, tensor)
        if j < len(layers):
            backward += message_s(problem, layers[j - 1].output_bytes, tensor)
        tail = parameters * (problem.step_s_per_parameter + problem.cast_s_per_parameter)
        if parameters:
            gradient_bytes = parameters * optimizer.gradient_bytes
            tail += collective_s("all_reduce", gradient_bytes, data, problem.cluster, tensor)
        tied = [layer.tied_parameters for layer in held]
        if max(tied) > 0 and sum(tied) < all_tied:
            tail += collective_s(
                "all_reduce", max(tied) * optimizer.gradient_bytes, 2, problem.cluster
            )
        loads.append(forward + backward)
        finishes.append(tail - before)
        before += backward
    return (microbatches - 1) * max(loads) + sum(loads) + max(finishes)
