"""What nodes of a trace send: which collective, how many bytes, and among which ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phaze_opt.choices import CollectiveName
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.chunk_exchanges import PartlyHidden
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import placed_candidate
from phaze_opt.placement.synchronisation import synchronisation_kind
from phaze_opt.workload.graph import Collective


class GroupExchange(NamedTuple):
    """A collective among ``devices`` ranks that are ``stride`` apart.

    ``given_bytes`` is what each of them gives. Where only ``inside`` of them are, the groups of
    these are ``outside_stride`` apart.
    """

    kind: CollectiveName
    given_bytes: int
    devices: int
    stride: int
    inside: int = 0
    outside_stride: int = 0

    def ranks_with(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of a rank."""
        inside = self.inside or self.devices
        outside = self.devices // inside
        first = rank - rank // self.stride % inside * self.stride
        if outside > 1:
            first -= rank // self.outside_stride % outside * self.outside_stride
        return tuple(
            [
                first + group * self.outside_stride + member * self.stride
                for group in range(outside)
                for member in range(inside)
            ]
        )

    def part(self, seconds: PartlyHidden, own_s: float) -> GroupExchange:
        """Return the share of it that takes some of its seconds."""
        share = own_s / seconds.total_s if seconds.total_s > 0.0 else 1.0
        return self._replace(given_bytes=round(self.given_bytes * share))


class StageMessage(NamedTuple):
    """What goes to or comes from another stage, with a number that both ends know it by."""

    stage: int
    size_bytes: int
    tag: int


@dataclass(frozen=True)
class Exchanges:
    """Finds what the devices of a placement exchange with one another.

    Attributes
    ----------
    problem
        What was placed.
    placement
        Of its layers.
    """

    problem: PlacementProblem
    placement: Placement

    def of_layer(self, collective: Collective) -> GroupExchange:
        """Return a collective of an operator."""
        tensor, kind, size_bytes = self.placement.tensor, collective.kind, collective.size_bytes
        if collective.exchange:
            exchange = collective.exchange
            stride = exchange.stride or tensor
            return GroupExchange("all_to_all", exchange.size_bytes, exchange.devices, stride)
        devices, stride = collective.neighbours or tensor, 1
        if collective.context:
            devices, stride = collective.context.devices, tensor
        if kind == "ring":
            # After messages to the next of n devices, n − 1 times, all have what each had.
            return GroupExchange("all_gather", size_bytes // (devices - 1), devices, stride)
        assert kind != "dispatch" and kind != "combine"
        given_bytes = size_bytes // devices if kind == "all_gather" else size_bytes
        return GroupExchange(kind, given_bytes, devices, stride)

    def gather(self, parameters: int) -> GroupExchange:
        """Return a gather of some weights among all that hold them."""
        whole = parameters * self.problem.training.state.gathered_bytes
        return self._of_replicas("all_gather", round(whole / self._candidate.data))

    def gradients(self, parameters: int) -> GroupExchange:
        """Return a synchronisation of the gradients of some weights."""
        training = self.problem.training
        kind = synchronisation_kind(training.zero)
        given_bytes = round(parameters * training.reduced_bytes)
        return self._of_replicas(kind, given_bytes)

    @property
    def _candidate(self) -> Candidate:
        """The degrees, where every device that holds the same parameters is a replica."""
        return placed_candidate(self.placement)

    def _of_replicas(self, kind: CollectiveName, given_bytes: int) -> GroupExchange:
        """Return a collective among all that hold the same parameters."""
        own = self._candidate
        stride, apart = own.stride("data"), own.outside_stride
        return GroupExchange(kind, given_bytes, own.data, stride, own.inside, apart)
