"""What a stage does in a batch as nodes, added one after another or side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from phaze_opt.interchange.node_exchanges import GroupExchange, StageMessage

NodeKind = Literal["compute", "collective", "send", "receive"]
Span = tuple[float, float]
"""Start and end in seconds."""


@dataclass(frozen=True)
class BatchNode:
    """Something that a device of a stage does in a batch.

    Attributes
    ----------
    name
        What it is.
    kind
        Compute, or communication.
    span_s
        Start and end, from the start of the batch.
    follows
        Nodes of the stage that are over before, because a stage does one pass at a time.
    needs
        Nodes of the stage whose results it takes.
    exchange
        What is sent.
    """

    name: str
    kind: NodeKind
    span_s: Span
    follows: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()
    exchange: GroupExchange | StageMessage | None = None


@dataclass
class StageNodes:
    """The nodes of a stage so far.

    Attributes
    ----------
    nodes
        In order.
    last
        Those with whose end the stage is free again.
    done
        Those with whose end a pass is done, by part, chunk and microbatch.
    """

    nodes: list[BatchNode] = field(default_factory=list)
    last: tuple[int, ...] = ()
    done: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)

    def beside(
        self,
        name: str,
        kind: NodeKind,
        span_s: Span,
        needs: tuple[int, ...] = (),
        exchange: GroupExchange | StageMessage | None = None,
        follows: tuple[int, ...] | None = None,
    ) -> int:
        """Add a node, by default after all that the stage did; return its number."""
        before = self.last if follows is None else follows
        self.nodes.append(BatchNode(name, kind, span_s, before, needs, exchange))
        return len(self.nodes) - 1

    def then(
        self,
        name: str,
        kind: NodeKind,
        span_s: Span,
        needs: tuple[int, ...] = (),
        exchange: GroupExchange | StageMessage | None = None,
    ) -> None:
        """Add a node after all that the stage did, for which all others wait."""
        self.last = (self.beside(name, kind, span_s, needs, exchange),)
