"""A batch as nodes that wait for one another: what each stage does, with the times of the replay.

A stage does one pass after another. A pass first receives, which is part of its work; then weights
come in that nothing hides, its layers run, and gradients go out; what is then sent to another stage
takes this one no time. Every node starts when one that it waits for ends, so that whoever replays
the nodes finds the times of the placement's own replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from phaze_opt.interchange.layer_pieces import Piece
from phaze_opt.interchange.node_exchanges import Exchanges, GroupExchange, StageMessage
from phaze_opt.interchange.stage_nodes import BatchNode, NodeKind, Span, StageNodes
from phaze_opt.placement.chunk_exchanges import ChunkExchanges, PartlyHidden
from phaze_opt.placement.describe import placement_replay
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.zero_bubble import BACKWARD, FORWARD, WEIGHT

LayerPieces = Sequence[Mapping[str, tuple[Piece, ...]]]
"""Of every layer of the model by the name of the pass, see `layer_pieces.pieces_of_layers`."""

_PASS_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradient"}
_SENT = {FORWARD: "activation", BACKWARD: "gradient"}
_CLOSE = 1e-9
"""Relative difference up to which a sum of parts is the whole."""


class _Pass(NamedTuple):
    """A pass of a chunk of a stage on a microbatch; sorted, passes are in the order of the stage.

    Those that take no time sort as they depend on one another.
    """

    start_s: float
    end_s: float
    part: int
    rank: int
    microbatch: int
    chunk: int


def batch_nodes(
    problem: PlacementProblem,
    placement: Placement,
    exchanges: Sequence[Sequence[ChunkExchanges]],
    layers: LayerPieces | None = None,
) -> Iterator[tuple[BatchNode, ...]]:
    """Yield the nodes of one batch on a device, stage by stage.

    Parameters
    ----------
    problem
        What was placed.
    placement
        Of its layers.
    exchanges
        See `phaze_opt.placement.chunk_exchanges.chunk_exchanges`.
    layers
        How the layers run, if that is known; else a pass is one node, as where the weight gradients
        are made apart and where microbatches run in pairs.
    """
    if placement.order is not None or problem.training.pairs_microbatches:
        layers = None
    batch = _Batch(problem, placement, exchanges, layers)
    for stage in range(placement.pipeline):
        yield batch.of_stage(stage)


class _Batch:
    """Makes the nodes of stages."""

    def __init__(
        self,
        problem: PlacementProblem,
        placement: Placement,
        exchanges: Sequence[Sequence[ChunkExchanges]],
        layers: LayerPieces | None,
    ) -> None:
        self.problem, self.placement = problem, placement
        self.exchanges, self.layers = exchanges, layers
        self.sent = Exchanges(problem, placement)
        self.replay = placement_replay(placement)
        stages, self.chunks = placement.pipeline, len(placement.stages[0].work)
        in_v = placement.pipeline_schedule == "zb-v"
        self.chain = [
            (chunk, stages - 1 - stage if in_v and chunk == 1 else stage)
            for chunk in range(self.chunks)
            for stage in range(stages)
        ]
        self.place = {each: place for place, each in enumerate(self.chain)}

    def of_stage(self, stage: int) -> tuple[BatchNode, ...]:
        """Return the nodes of a stage."""
        nodes = StageNodes()
        arrived = self._first_gathers(nodes, stage)
        passes = sorted(self._passes(stage))
        for each in passes:
            if each.part == FORWARD and each.microbatch == 0:
                nodes.last += arrived[each.chunk]
            self._add_pass(nodes, stage, each, is_last=each is passes[-1])
        self._add_tail(nodes, stage)
        return tuple(nodes.nodes)

    def _passes(self, stage: int) -> Iterator[_Pass]:
        """Yield all passes of a stage with their times, to the bit as the replay adds them up."""
        done = self.replay
        for chunk, work in enumerate(self.placement.stages[stage].work):
            for microbatch in range(self.placement.microbatches):
                saving_s = 0.0 if microbatch else work.first_saving_s
                backward_s = work.backward_s - saving_s
                if done.weight_start_s is not None:
                    backward_s = work.backward_s - work.weight_gradient_s
                    begin_s = float(done.weight_start_s[chunk, stage, microbatch])
                    end_s = begin_s + (work.weight_gradient_s - saving_s)
                    yield _Pass(begin_s, end_s, WEIGHT, -chunk, microbatch, chunk)
                begin_s = float(done.forward_start_s[chunk, stage, microbatch])
                yield _Pass(begin_s, begin_s + work.forward_s, FORWARD, chunk, microbatch, chunk)
                begin_s = float(done.backward_start_s[chunk, stage, microbatch])
                yield _Pass(begin_s, begin_s + backward_s, BACKWARD, -chunk, microbatch, chunk)

    def _neighbour(self, stage: int, chunk: int, step: int) -> tuple[int, int] | None:
        """Return chunk and stage before (−1) or after (1) a chunk, if there is one."""
        place = self.place[chunk, stage] + step
        return self.chain[place] if 0 <= place < len(self.chain) else None

    def _add_pass(self, nodes: StageNodes, stage: int, each: _Pass, *, is_last: bool) -> None:
        """Add the nodes of a pass."""
        own, suffix = self.exchanges[stage][each.chunk], f" microbatch {each.microbatch}"
        step = {FORWARD: 1, BACKWARD: -1, WEIGHT: 0}[each.part]
        needs = self._needed(nodes, stage, each, step)
        at_s = self._add_receive(nodes, stage, each, step)
        gather = reduction = PartlyHidden()
        if each.part == FORWARD:
            gather = own.forward_gather
        elif each.part == BACKWARD:
            gather, reduction = own.backward_gather, own.reduction
        gathered, reduced = self.sent.gather(own.parameters), self.sent.gradients(own.parameters)
        if gather.exposed_s > 0.0:
            span_s = at_s, min(at_s + gather.exposed_s, each.end_s)
            part = gathered.part(gather, gather.exposed_s)
            nodes.then(f"parameter gather{suffix}", "collective", span_s, (), part)
            at_s = span_s[1]
        main_s = at_s, max(each.end_s - reduction.exposed_s, at_s)
        hidden = [(f"hidden parameter gather{suffix}", gather, gathered)]
        hidden.append((f"hidden gradient reduction{suffix}", reduction, reduced))
        if is_last:
            hidden.append(("hidden gradient synchronisation", *self._once(stage)))
        beside = self._add_hidden(nodes, hidden, main_s, needs)
        self._add_layers(nodes, each, own, main_s, needs)
        nodes.last += beside
        if reduction.exposed_s > 0.0:
            part, span_s = reduced.part(reduction, reduction.exposed_s), (main_s[1], each.end_s)
            nodes.then(f"gradient reduction{suffix}", "collective", span_s, (), part)
        nodes.done[each.part, each.chunk, each.microbatch] = nodes.last
        receiver = self._neighbour(stage, each.chunk, step) if step else None
        if receiver is not None and receiver[1] != stage:
            message = self._message(each, receiver, receiver[1])
            name, span_s = f"send {_SENT[each.part]}{suffix}", (each.end_s, each.end_s)
            nodes.beside(name, "send", span_s, nodes.last, message, ())

    def _needed(self, nodes: StageNodes, stage: int, each: _Pass, step: int) -> tuple[int, ...]:
        """Return the nodes of the stage itself whose results a pass takes."""
        if each.part == WEIGHT:
            return nodes.done[BACKWARD, each.chunk, each.microbatch]
        own: tuple[int, ...] = ()
        if each.part == BACKWARD:
            own = nodes.done[FORWARD, each.chunk, each.microbatch]
        before = self._neighbour(stage, each.chunk, -step)
        if before is None or before[1] != stage:
            return own
        return own + nodes.done[each.part, before[0], each.microbatch]

    def _add_receive(self, nodes: StageNodes, stage: int, each: _Pass, step: int) -> float:
        """Add what a pass receives from another stage; return when it has that."""
        sender = self._neighbour(stage, each.chunk, -step) if step else None
        if sender is None or sender[1] == stage:
            return each.start_s
        own = self.exchanges[stage][each.chunk]
        received_s = own.activation_s if each.part == FORWARD else own.gradient_s
        span_s = each.start_s, min(each.start_s + received_s, each.end_s)
        message = self._message(each, (each.chunk, stage), sender[1])
        name = f"receive {_SENT[each.part]} microbatch {each.microbatch}"
        nodes.then(name, "receive", span_s, (), message)
        return span_s[1]

    def _message(self, each: _Pass, receiver: tuple[int, int], other: int) -> StageMessage:
        """Return what a chunk of a stage receives for a pass, as one of both ends names the other.

        Parameters
        ----------
        each
            The pass.
        receiver
            Chunk and stage.
        other
            The stage at the other end.
        """
        chunk, stage = receiver
        own = self.exchanges[stage][chunk]
        sent_bytes = own.activation_bytes if each.part == FORWARD else own.gradient_bytes
        tag = (each.part * self.chunks + chunk) * self.placement.microbatches + each.microbatch
        return StageMessage(other, round(sent_bytes), tag)

    def _add_hidden(
        self,
        nodes: StageNodes,
        hidden: Sequence[tuple[str, PartlyHidden, GroupExchange]],
        span_s: Span,
        needs: tuple[int, ...],
    ) -> tuple[int, ...]:
        """Add what runs beside the layers of a pass, at most as long as they do."""
        numbers = []
        for name, seconds, exchange in hidden:
            all_s = seconds.total_s - seconds.exposed_s
            hidden_s = min(all_s, span_s[1] - span_s[0])
            if hidden_s > 0.0 and exchange.devices > 1:
                own_s, part = (span_s[0], span_s[0] + hidden_s), exchange.part(seconds, all_s)
                numbers.append(nodes.beside(name, "collective", own_s, needs, part))
        return tuple(numbers)

    def _add_layers(
        self,
        nodes: StageNodes,
        each: _Pass,
        own: ChunkExchanges,
        span_s: Span,
        needs: tuple[int, ...],
    ) -> None:
        """Add what the layers of a pass do, piece by piece if that is known."""
        suffix = f" microbatch {each.microbatch}"
        names, (first, end) = self.problem.names_of(self.placement.tensor), own.run
        runs = self._runs(each, own)
        length_s, (at_s, end_s) = span_s[1] - span_s[0], span_s
        left_s = length_s - sum(pieces[-1].end_s for _, pieces in runs)
        if not runs or left_s < -_CLOSE * length_s:
            label = f"{names[first]} to {names[end - 1]} {_PASS_NAMES[each.part]}{suffix}"
            nodes.then(label, "compute", span_s, needs)
            return
        for place, (label, pieces) in enumerate(runs):
            until_s = min(at_s + pieces[-1].end_s, end_s)
            if place == len(runs) - 1 and left_s <= _CLOSE * length_s:
                until_s = end_s
            self._add_pieces(nodes, (label, suffix), pieces, (at_s, until_s), needs)
            at_s, needs = until_s, ()
        if left_s > _CLOSE * length_s:
            rest = "gradient accumulation" if each.part == BACKWARD else "rest of the forward"
            nodes.then(f"{rest}{suffix}", "compute", (at_s, end_s))

    def _runs(self, each: _Pass, own: ChunkExchanges) -> list[tuple[str, tuple[Piece, ...]]]:
        """Return the passes of the layers of a chunk in their order, without those of no time."""
        if self.layers is None:
            return []
        names, places = self.problem.names_of(self.placement.tensor), range(*own.run)
        passes = ("forward",) if each.part == FORWARD else ("recompute", "backward")
        return [
            (f"{names[place]} {name}", self.layers[place][name])
            for place in (places if each.part == FORWARD else reversed(places))
            for name in passes
            if name in self.layers[place]
        ]

    def _add_pieces(
        self,
        nodes: StageNodes,
        label: tuple[str, str],
        pieces: Sequence[Piece],
        span_s: Span,
        needs: tuple[int, ...],
    ) -> None:
        """Add the pieces of a pass of a layer."""
        numbers: list[int] = []
        length_s, before = pieces[-1].end_s, nodes.last
        for piece in pieces:
            at_s, end_s = (min(span_s[0] + s, span_s[1]) for s in (piece.start_s, piece.end_s))
            own_s = at_s, span_s[1] if piece.end_s == length_s else end_s
            follows = tuple(numbers[place] for place in piece.after) or before
            exchange = None if piece.collective is None else self.sent.of_layer(piece.collective)
            kind: NodeKind = "compute" if exchange is None else "collective"
            name = " ".join(filter(None, (label[0], piece.name))) + label[1]
            taken = () if piece.after else needs
            numbers.append(nodes.beside(name, kind, own_s, taken, exchange, follows))
        ends = zip(numbers, pieces, strict=True)
        nodes.last = tuple(number for number, piece in ends if piece.end_s == length_s)

    def _once(self, stage: int) -> tuple[PartlyHidden, GroupExchange]:
        """Return what replicas exchange once per batch, after and beside the last backward."""
        own, kind = self.placement.stages[stage], "gradient_synchronisation"
        all_s = next(each.total_s for each in own.communication if each.kind == kind)
        exposed_s = own.synchronisation_s
        # Of gradients that go out in every microbatch, only tied ones are exchanged at the end.
        is_once = self.problem.training.zero < 2
        total_s = max(all_s, exposed_s) if is_once else exposed_s
        return PartlyHidden(exposed_s, total_s), self.sent.gradients(self._parameters(stage))

    def _parameters(self, stage: int) -> int:
        """Count the parameters of all chunks of a stage, on a device."""
        return sum(own.parameters for own in self.exchanges[stage])

    def _first_gathers(self, nodes: StageNodes, stage: int) -> list[tuple[int, ...]]:
        """Add the gathers before the first forwards of the chunks, one after another."""
        arrived: list[tuple[int, ...]] = []
        before: tuple[int, ...] = ()
        at_s = 0.0
        chunks = zip(self.placement.stages[stage].work, self.exchanges[stage], strict=True)
        for work, own in chunks:
            if work.head_s > at_s:
                gathered = self.sent.gather(own.parameters)
                span_s = at_s, work.head_s
                number = nodes.beside(
                    "parameter gather", "collective", span_s, (), gathered, before
                )
                before, at_s = (number,), work.head_s
            arrived.append(before if work.head_s > 0.0 else ())
        return arrived

    def _add_tail(self, nodes: StageNodes, stage: int) -> None:
        """Add what a stage does once per batch, after its last pass."""
        own, (seconds, gradients) = self.placement.stages[stage], self._once(stage)
        exposed = gradients.part(seconds, seconds.exposed_s)
        at_s = float(self.replay.finish_s[stage])
        for name, own_s, exchange in (
            ("gradient synchronisation", own.synchronisation_s, exposed),
            ("optimizer", own.optimizer_s, None),
            ("parameter gather", own.gather_s, self.sent.gather(self._parameters(stage))),
        ):
            if own_s <= 0.0:
                continue
            span_s = at_s, at_s + own_s
            # A single replica exchanges tied weights only, between two stages.
            if exchange is None or exchange.devices == 1:
                nodes.then(name, "compute", span_s)
            else:
                nodes.then(name, "collective", span_s, (), exchange)
            at_s += own_s
