"""How far a winner depends on all uncertain constants at once.

The certified best designs of a space are ranked again under draws of every constant from its range.
No design but these is looked at: one that is not among them may be the best of a draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
from scipy.stats import rankdata

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.space_chips import allowed_chips
from phaze_opt.errors import InputError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.workload.graph import Workload
from studies.atlas.draws import Constant, constants_of, drawn_study, draws_of
from studies.atlas.markdown import table
from studies.atlas.ranking import Drawn, Items, Ranking, workloads_of
from studies.paper.searches import enumerated
from studies.work import Work

DESIGNS = 1000
DRAWS = 256
BLOCK = 16
"""Draws that are ranked together."""
QUANTILES = (0.5, 0.75, 0.9, 0.95, 1.0)
STEADY = 0.95
"""Share of the draws in which the regret of the steadiest design is at most what is minimised."""
NEAR = (0.01, 0.05)
"""Regrets within which it is counted how often the winner stays."""


@dataclass(frozen=True)
class Steady:
    """The design of least regret in most draws.

    Attributes
    ----------
    place
        Among the certified designs, the nominal winner 0.
    nominal
        Throughput relative to the winner with the constants as they are.
    regret
        At most in `STEADY` of the draws.
    """

    place: int
    values: Mapping[str, Scalar]
    nominal: float
    regret: float
    evaluated: int


@dataclass(frozen=True)
class Robust:
    """How a winner stands under joint draws of all constants.

    Attributes
    ----------
    draws, designs
        How many.
    out
        Draws in which the winner is above the limit of the area, or does not fit.
    best
        Draws in which it is the best.
    regrets
        At `QUANTILES`, over the draws in which it may be built.
    near
        Share of all draws in which its regret is within each of `NEAR`.
    matters
        Rank correlation of its regret with each constant, over the draws in which it may be built.
    constants
        That were drawn.
    evaluated, of
        Designs with an option under a draw: those that were evaluated, and all. Bounds exclude the
        others.
    """

    draws: int
    designs: int
    out: int
    best: int
    regrets: tuple[float, ...]
    near: tuple[float, ...]
    matters: Mapping[str, float]
    constants: tuple[Constant, ...]
    steady: Steady
    evaluated: int
    of: int


@dataclass(frozen=True)
class Block:
    """`BLOCK` draws, one after the other."""

    draws: tuple[Drawn, ...]


@dataclass(frozen=True, eq=False)
class _Certified:
    """The certified best designs of a space.

    Attributes
    ----------
    designs
        How many were asked for.
    nominal
        Samples per second of each.
    """

    designs: int
    study: ResolvedStudy
    workloads: Mapping[bool, Sequence[Workload]]
    constants: tuple[Constant, ...]
    items: Items
    nominal: FloatArray

    @classmethod
    def of(cls, work: Work, spec: StudySpec, designs: int) -> _Certified:
        """Enumerate a space, unless that was done."""
        study, found = enumerated(work, spec, designs)
        points = [DesignPoint(design.point) for design in found.top]
        return cls(
            designs=designs,
            study=study.resolved,
            workloads=workloads_of(study),
            constants=constants_of(study.resolved.base),
            items=Items.of(study.resolved, points),
            nominal=np.array([design.metrics.value for design in found.top]),
        )

    def ranking(self, values: FloatArray, earlier: Drawn | None = None) -> Ranking:
        """Return the designs under some constants, and what was found of them."""
        named = zip([each.name for each in self.constants], values.tolist(), strict=True)
        most = np.full(len(self.items.design_of), np.inf)
        known = np.zeros(len(most), dtype=np.bool_)
        if earlier is not None:
            most = np.array(earlier.most_samples_per_s)
            known[list(earlier.known)] = True
        own = drawn_study(self.study, dict(named))
        return Ranking(own, self.workloads, self.items, most, known)

    def rank(self, draws: FloatArray) -> Block:
        """Rank the designs under some draws.

        Group by group: what no constant changes, such as which placements fit a memory, is then
        found once for all draws.
        """
        rankings = [self.ranking(values) for values in draws]
        for ranking in rankings:
            ranking.exclude()
        space = allowed_chips(self.study)
        for group in self.items.groups:
            for ranking in rankings:
                ranking.bound(group, space)
        return Block(tuple(ranking.answer() for ranking in rankings))

    def steadiest(self, drawn: Sequence[Drawn]) -> Steady:
        """Find the design whose regret, but in the worst draws, is the least.

        Draw by draw, those first in which bounds leave designs the largest regret: one is given up
        as soon as it has more regret than the nominal winner in too many of them.
        """
        draws = draws_of(self.constants, len(drawn))
        regrets = np.array(
            [self._regrets(self.ranking(*own), own[1]) for own in zip(draws, drawn, strict=True)]
        )
        least, evaluated = _at_share(regrets, STEADY), 0
        left = np.flatnonzero(least <= least[0])
        for draw in np.argsort(-regrets[:, left].sum(axis=1), kind="stable").tolist():
            # What a network's collectives take is found once for all designs of a draw.
            ranking = self.ranking(draws[draw], drawn[draw])
            for design in left.tolist():
                ranking.exactly(design)
            evaluated += int(ranking.known.sum()) - len(drawn[draw].known)
            regrets[draw] = self._regrets(ranking, drawn[draw])
            left = left[_at_share(regrets[:, left], STEADY) <= least[0]]
        at_most = _at_share(regrets[:, left], STEADY)
        place = int(left[np.argmin(at_most)])
        return Steady(
            place=place,
            values=dict(self.items.points[place].values),
            nominal=float(self.nominal[place] / self.nominal[0]),
            regret=float(at_most.min()),
            evaluated=evaluated,
        )

    def _regrets(self, ranking: Ranking, drawn: Drawn) -> FloatArray:
        """Return the least regret that each design may have under a draw."""
        return 1.0 - ranking.of_designs() / (drawn.best_samples_per_s or 1.0)


def robust(work: Work, spec: StudySpec, designs: int = DESIGNS, draws: int = DRAWS) -> Robust:
    """Rank the best designs of a space again under joint draws of all constants, once.

    Every design is bounded under every draw, and evaluated only where that decides which one is the
    best, what the winner reaches, or which one is the steadiest.

    Parameters
    ----------
    work
        Keeps every `BLOCK` of draws, and has them ranked by its number of processes.
    spec
        The space.
    designs, draws
        How many, at least 1.

    Raises
    ------
    InputError
        If the space has another objective than the throughput, several workloads, or a limit of
        power or dollars, or ``designs`` is below 1.
    """
    _check(spec)
    ranked = partial(_robust, work, spec, designs, draws)
    asked = [spec, designs, draws, constants_of(load_accelerator(spec.space.base))]
    return work.answer(f"robust-{spec.name}", asked, Robust, ranked)


def _robust(work: Work, spec: StudySpec, designs: int, draws: int) -> Robust:
    """Do as `robust`."""
    # Other processes find it enumerated.
    certified, starts = _Certified.of(work, spec, designs), range(0, draws, BLOCK)
    if work.workers > 1:
        shares = [starts[first :: work.workers] for first in range(min(work.workers, len(starts)))]
        work.in_processes(_rank_share, [(spec, designs, share) for share in shares])
    drawn = _rank(work, certified, starts)[:draws]
    key = [spec, designs, draws, certified.constants]
    steady = work.answer(f"steady-{spec.name}", key, Steady, lambda: certified.steadiest(drawn))
    return _answer(certified, drawn, steady)


def _check(spec: StudySpec) -> None:
    """Refuse what no bound of a ranking knows."""
    if spec.objectives != ("throughput",) or len(spec.runs) > 1 or spec.constraints.limits_power:
        raise InputError(
            f"The study {spec.name!r} has another objective than throughput alone, several "
            "workloads, or a limit of power or dollars, which joint draws do not know."
        )


def _rank(work: Work, certified: _Certified, starts: Sequence[int]) -> list[Drawn]:
    """Return the draws of some blocks, each ranked unless that was done."""
    spec, drawn = certified.study.spec, list[Drawn]()
    for start in starts:
        draws = draws_of(certified.constants, start + BLOCK)[start:]
        key = [spec, certified.designs, draws.tolist()]
        rank = partial(certified.rank, draws)
        drawn += work.answer(f"draws-{spec.name}-{start}", key, Block, rank).draws
    return drawn


def _rank_share(work: Work, share: tuple[StudySpec, int, Sequence[int]]) -> None:
    """Rank some blocks in a process of their own."""
    spec, designs, starts = share
    _rank(work, _Certified.of(work, spec, designs), starts)


def _at_share(regrets: FloatArray, share: float) -> FloatArray:
    """Return the regret that a share of the draws, the first axis, does not exceed."""
    last = ceil(share * len(regrets) - 1e-9) - 1
    return np.asarray(np.sort(regrets, axis=0)[last])


def _answer(certified: _Certified, drawn: Sequence[Drawn], steady: Steady) -> Robust:
    """Put together what was found."""
    regrets = np.array(
        [1.0 - each.winner_samples_per_s / (each.best_samples_per_s or 1.0) for each in drawn]
    )
    within = np.array([each.winner_samples_per_s > 0.0 for each in drawn])
    draws = draws_of(certified.constants, len(drawn))[within]
    # Where it never may be built, it loses everything.
    allowed = regrets[within] if within.any() else np.ones(1)
    return Robust(
        draws=len(drawn),
        designs=len(certified.items.points),
        out=int((~within).sum()),
        best=int((regrets <= 0.0).sum()),
        regrets=tuple(float(_at_share(allowed, share)) for share in QUANTILES),
        near=tuple(float((regrets <= most).mean()) for most in NEAR),
        matters={
            each.name: _rank_correlation(draws[:, place], regrets[within])
            for place, each in enumerate(certified.constants)
        },
        constants=certified.constants,
        steady=steady,
        evaluated=sum(len(each.known) for each in drawn) + steady.evaluated,
        of=len(drawn) * len(certified.items.design_of),
    )


def _rank_correlation(values: FloatArray, others: FloatArray) -> float:
    """Return Spearman's correlation; 0 where one of them does not vary."""
    if len(values) < 2 or np.ptp(values) == 0.0 or np.ptp(others) == 0.0:
        return 0.0
    return float(np.corrcoef(rankdata(values), rankdata(others))[0, 1])


def robust_lines(robust: Mapping[str, Robust]) -> Iterator[str]:
    """Yield the section of the page.

    Parameters
    ----------
    robust
        By the words of the question.
    """
    yield "## How robust the winners are"
    yield ""
    yield (
        "The certified best designs of each space are ranked again under joint draws (scrambled "
        "Sobol' points) of all constants below, each placed again, with its options at best. "
        "Regret is by how much the winner is below the best of these designs. **A design that is "
        "not among them is not covered**: it may be better than all of them under a draw."
    )
    yield ""
    shares = [f"regret in {share:.0%}" for share in QUANTILES]
    near = [f"within {most:.0%}" for most in NEAR]
    head = ("model", "designs", "draws", "above the area", "best", *near, *shares, "evaluated")
    rows = [
        [words, f"{each.designs:,}", str(each.draws), str(each.out), str(each.best)]
        + [f"{share:.0%}" for share in each.near]
        + [f"{regret:.2%}" for regret in each.regrets]
        + [f"{each.evaluated:,} of {each.of:,}"]
        for words, each in robust.items()
    ]
    yield from table(head, rows)
    yield ""
    yield (
        "Counts and shares are of all draws; regrets are of those in which the winner is within "
        "the area and fits, at most so large in so many of them."
    )
    yield ""
    yield "Rank correlation (Spearman) of the regret with each constant:"
    yield ""
    first = next(iter(robust.values()))
    matters = [
        [constant.name.replace("_", " "), f"{constant.low:.3g}", f"{constant.high:.3g}"]
        + [f"{each.matters[constant.name]:+.2f}" for each in robust.values()]
        for constant in first.constants
    ]
    yield from table(("constant", "from", "to", *robust), matters)
    yield ""
    for words, each in robust.items():
        steady = each.steady
        chip = ", ".join(f"{name} {value}" for name, value in steady.values.items())
        yield (
            f"- {words}: the regret that {STEADY:.0%} of the draws do not exceed, above the area "
            f"counted as 100%, is the least, {steady.regret:.2%}, of place {steady.place + 1} "
            f"({steady.nominal:.4f} of the winner with the constants as they are): {chip}"
        )
