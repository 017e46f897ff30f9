"""Lower bound of the time of a batch over all placements, for many accelerators at once.

It takes the least seconds of every distinct layer on every accelerator, and what
`phaze_opt.placement.solve_placement` takes beside them; the answer is never above its time. What
does not depend on the accelerator (bytes, messages, collectives) comes from the tables that the
placement itself uses (`phaze_opt.placement.candidate_costs`), made of layers without seconds; the
formulas of the bound stand in `phaze_opt.placement.least_splits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray, distinct_rows
from phaze_opt.degrees import Degrees
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.handled import check_handled
from phaze_opt.passes.layer_cost import LayerPasses, LeastLayers
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.collected_candidates import collect_candidates
from phaze_opt.placement.least_candidates import CandidateArrays, LeastCandidates
from phaze_opt.placement.least_times import least_times_s
from phaze_opt.placement.most_times import most_times_s
from phaze_opt.placement.placement_problem import ChipRates, PlacementProblem, s_per_parameter


class LeastPlacement:
    """Lower bounds of the time of a batch at one tensor degree.

    Parameters
    ----------
    problem
        Layers, edges, cluster and training; seconds, memory and rates are not looked at.
    tensor
        The tensor degree, one of the problem's.
    distinct
        Which distinct layer each of the layers is, as a row of `LeastLayers`.
    degrees
        If they are given, with even stages; by default the best of
        all, and of all splits.
    most_devices
        Placements on more devices count as not fitting; ``None`` for no limit.
    links_s : (2, distinct layers)
        For how long groups beside the replicas use the network in the forward, and in the backward
        with recompute, of every distinct layer: at most as long as on any chip. ``None`` where
        nothing is known of it.

    Raises
    ------
    InputError
        If the training has an option that the bound does not know.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        tensor: int,
        distinct: Sequence[int],
        degrees: Degrees | None = None,
        most_devices: int | None = None,
        links_s: FloatArray | None = None,
    ) -> None:
        check_handled(problem.training)
        self.training = problem.training
        self._distinct = np.array(distinct, dtype=np.int64)
        layers = tuple(
            replace(layer, passes=LayerPasses(), paired_s=0.0) for layer in problem.layers[tensor]
        )
        given = problem.edges, problem.cluster, problem.training
        self._bare = PlacementProblem({tensor: layers}, *given, 0.0, np.inf)
        self._degrees, self._tensor = degrees, tensor
        self._most_devices = most_devices
        self._links_s = links_s

    @cached_property
    def _candidates(self) -> LeastCandidates:
        # Its costs of all stages, of which the bounds need a small part, are let go here.
        candidates = collect_candidates(
            CandidateCosts(self._bare), self._distinct, self._degrees, self._most_devices
        )
        if self._links_s is None:
            return candidates
        links = np.zeros((2, len(self._distinct) + 1))
        np.cumsum(self._links_s[:, self._distinct], axis=1, out=links[:, 1:])
        return replace(candidates, links=links, _fitting={})

    @property
    def table_bytes(self) -> int:
        """Size of the tables that were filled so far."""
        candidates: LeastCandidates | None = self.__dict__.get("_candidates")
        return 0 if candidates is None else candidates.table_bytes

    def candidates_within(self, usable_bytes: float) -> CandidateArrays:
        """Return the candidates that fit a memory, as `least_times.least_times_s` takes them."""
        return self._candidates.fitting(usable_bytes)

    def least_s(
        self,
        layers: LeastLayers,
        rates: ChipRates,
        known_s: FloatArray | None = None,
        *,
        splits: bool = True,
    ) -> FloatArray:
        """Bound the time of a batch from below.

        Parameters
        ----------
        layers
            Seconds of the distinct layers.
        rates
            Of the accelerators.
        known_s : (accelerators,)
            Times above which a bound is of no use, such as those at other tensor degrees; it is
            then only said to be at least as large.
        splits
            Whether to look at splits into stages one by one; without them the bound is looser, and
            comes many times sooner.

        Returns
        -------
        (accelerators,)
            Seconds per batch, at most ``known_s``; infinite where no placement fits the memory.
        """
        seconds, chips = self._columns(layers, rates)
        answers = np.full(len(chips), np.inf) if known_s is None else known_s.copy()
        for usable_bytes in np.unique(rates.hbm_usable_bytes):
            here: IntArray = np.flatnonzero(rates.hbm_usable_bytes == usable_bytes)
            # Many chips differ in nothing that counts, for example in a buffer that fits anyway.
            flat = seconds[here].reshape(len(here), -1)
            first, which = distinct_rows(np.column_stack([flat, chips[here], answers[here]]))
            least_s = least_times_s(
                self._distinct,
                seconds[here[first]],
                chips[here[first]],
                self.candidates_within(float(usable_bytes)),
                answers[here[first]],
                splits,
            )
            answers[here] = least_s[which]
        return answers

    def most_s(self, layers: LeastLayers, rates: ChipRates) -> FloatArray:
        """Bound the time of a batch of the fastest placement from above.

        Parameters
        ----------
        layers
            The most seconds of the distinct layers.
        rates
            Of the accelerators.

        Returns
        -------
        (accelerators,)
            Infinite where no single stage fits the memory, experts are shared out, or something
            waits on the host.
        """
        seconds, chips = self._columns(layers, rates)
        if self.training.holds_experts_apart(self._tensor) or self.training.offloads:
            # Replicas step and add up experts of others, which is not in the candidates; nor is
            # the link to the host.
            return np.full(len(chips), np.inf)
        layers_s = seconds[:, :2, self._distinct].sum(axis=(1, 2))
        answers = np.full(len(chips), np.inf)
        for usable_bytes in np.unique(rates.hbm_usable_bytes):
            here: IntArray = np.flatnonzero(rates.hbm_usable_bytes == usable_bytes)
            answers[here] = most_times_s(
                layers_s[here], chips[here], self.candidates_within(float(usable_bytes))
            )
        return answers

    def _columns(self, layers: LeastLayers, rates: ChipRates) -> tuple[FloatArray, FloatArray]:
        """Return seconds and rates of all accelerators, as `least_times.least_times_s` has them."""
        rows = [
            own_s.T
            for each in (layers, layers.pairs or layers)
            for own_s in (each.forward_s, each.backward_s + each.recompute_s)
        ]
        seconds = np.ascontiguousarray(np.stack(rows, axis=1))
        step_s = s_per_parameter(
            self.training.step_bytes, rates.hbm_bytes_per_s, rates.step_parameters_per_s
        )
        accumulation_s = s_per_parameter(
            self.training.state.accumulation_bytes,
            rates.hbm_bytes_per_s,
            rates.accumulation_parameters_per_s,
        )
        cast_s = self.training.cast_bytes / rates.hbm_bytes_per_s
        columns = step_s, accumulation_s, rates.collective_core_share, cast_s
        return seconds, np.stack(columns, axis=1)
