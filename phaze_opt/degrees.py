"""Degrees of parallelism: how many devices share what, and where the ranks of a group are.

Ranks are numbered in the order of their axes (`RankOrder`); tensor parallelism is innermost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Axis = Literal["pipeline", "data", "tensor"]
"""What ranks are numbered by; experts, and sequences, share the devices of the data axis."""

RankOrder = tuple[Axis, ...]
"""Axes of the ranks, outermost first: those along the last one are neighbours."""

STAGES_INSIDE: RankOrder = ("data", "pipeline", "tensor")
"""The stages of a replica are neighbours."""

REPLICAS_INSIDE: RankOrder = ("pipeline", "data", "tensor")
"""The replicas of a stage are neighbours."""

RANK_ORDERS = (REPLICAS_INSIDE, STAGES_INSIDE)
"""All orders in which the replicas stand together; on a network of one level they are the same."""

REPLICAS_SPLIT: RankOrder = ("data", "pipeline", "data", "tensor")
"""Some replicas of a stage are neighbours, and all stages of these stand before other replicas."""

_TEXT = re.compile(r"[1-9][0-9]*(?:x[1-9][0-9]*){2,4}")


class Degrees(NamedTuple):
    """How many ways the work is split along each axis; compared in this order.

    Attributes
    ----------
    pipeline, data, tensor
        Stages, replicas, and devices of a tensor-parallel group.
    expert, expert_tensor
        Ways in which the experts are split over the replicas, and each of them over devices.
    context
        Ways in which the sequence is split for attention.
    """

    pipeline: int
    data: int
    tensor: int
    expert: int = 1
    expert_tensor: int = 1
    context: int = 1

    @classmethod
    def of_text(cls, text: str) -> Degrees | None:
        """Read ``PPxDPxTP``, ``PPxDPxTPxEP`` or ``PPxDPxTPxEPxCP``; ``None`` where it is none."""
        if _TEXT.fullmatch(text) is None:
            return None
        pipeline, data, tensor, *others = map(int, text.split("x"))
        expert, context = (*others, 1, 1)[:2]
        return cls(pipeline, data, tensor, expert=expert, context=context)

    @property
    def text(self) -> str:
        """The degrees as ``PPxDPxTP``, with ``xEP`` and ``xCP`` as far as they are not 1."""
        others = [self.expert, self.context]
        while others and others[-1] == 1:
            others.pop()
        return "x".join(map(str, (self.pipeline, self.data, self.tensor, *others)))

    @property
    def as_replicas(self) -> Degrees:
        """The same with every device of a sequence as a replica: all hold the same parameters."""
        return self._replace(data=self.data * self.context, context=1)

    def sharing_sequences(self, context: int) -> Degrees:
        """Return those whose `as_replicas` these are, with so many devices for each sequence."""
        return self._replace(data=self.data // context, context=context)

    @property
    def devices(self) -> int:
        """Devices of all groups together."""
        return self.pipeline * self.data * self.context * self.tensor

    def stride(self, axis: Axis, order: RankOrder) -> int:
        """Return how far neighbours along an axis are apart, in ranks."""
        ranks = 1
        for inner in order[order.index(axis) + 1 :]:
            ranks *= getattr(self, inner)
        return ranks


RankOrderText = Literal["tensor-data-pipeline", "tensor-pipeline-data", "tensor-data-pipeline-data"]
"""An order of ranks in words, innermost axis first."""

ORDER_TEXTS: Mapping[RankOrder, RankOrderText] = {
    REPLICAS_INSIDE: "tensor-data-pipeline",
    STAGES_INSIDE: "tensor-pipeline-data",
    REPLICAS_SPLIT: "tensor-data-pipeline-data",
}


def order_of_text(text: RankOrderText) -> RankOrder:
    """Return the order that some words mean."""
    return next(order for order, words in ORDER_TEXTS.items() if words == text)
