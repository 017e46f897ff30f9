"""Seconds of a layer's backward that only weight gradients need, and what they keep until then."""

from __future__ import annotations

from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.passes.scheduled import ScheduledPass
from phaze_opt.workload.weight_gradients import weight_gradient_operators, weight_operand_bytes


def with_weight_gradients(layer: LayerCost, backward: ScheduledPass) -> LayerCost:
    """Return a layer that says what of its backward only weight gradients need.

    Both parts together take as long as the whole backward: the makespan is shared out by the
    seconds of the operators, in the modes that its schedule chose. On a chip that runs one operator
    at a time that is what each part takes by itself. On one that runs several beside each other the
    two parts, one after another, could not use what they leave free to each other: what is lost by
    that is left out.

    Parameters
    ----------
    layer
        With the seconds of its passes.
    backward
        As it runs.
    """
    is_weight = weight_gradient_operators(backward.graph)
    each_s = backward.chosen.latency_s.tolist()
    all_s = sum(each_s)
    weight_s = sum([own_s for own_s, own in zip(each_s, is_weight, strict=True) if own])
    share = weight_s / all_s if all_s > 0.0 else 0.0
    return layer.with_fields(
        weight_gradient_s=share * layer.passes.backward.seconds,
        weight_operand_bytes=weight_operand_bytes(backward.graph),
    )
