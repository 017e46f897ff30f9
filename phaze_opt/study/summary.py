"""The state of a study in numbers: its trials, its target, its rate and its best design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from phaze_opt.printing import PrintsAsTables
from phaze_opt.spec.frozen import ResolvedStudy, current_version
from phaze_opt.store import presence
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.store.ticket import TicketCounts
from phaze_opt.study.baselines import outside_space
from phaze_opt.study.best_design import BestDesign, best_design, best_to_json_dict
from phaze_opt.study.standing import Standing, read_standing

StudyState = Literal["new", "running", "stopping", "stopped", "done", "proven", "failed"]


@dataclass(frozen=True, repr=False)
class StudySummary(PrintsAsTables):
    """The state of a study in numbers; prints as the table of ``phaze-opt study show``.

    Attributes
    ----------
    trials
        Numbers of complete trials, of infeasible trials among them, of failed and running trials.
    target
        Target number of complete trials: that of the last run, before the first run that of the
        spec.
    left
        Number of trials that the target still needs, without failed trials; 0 if the best is
        proven.
    busy_s
        Time during which at least one trial ran.
    rate_per_s
        Complete trials per busy second; ``None`` before the first trial.
    cached_share
        Share of the evaluated trials whose evaluations were stored before.
    proven_schedule_share
        Share of the schedules of layers of all evaluated points that are proven optimal.
    quickly_proven_schedule_share
        Share of the different schedules of new evaluations that were proven optimal without the
        exact search or in under 20 ms; ``None`` if no evaluation is new.
    why_infeasible
        Number of infeasible points by the limit that they violate.
    failures
        Reasons of tickets that failed for good, each once.
    outside
        For each baseline that no trial can find: a sentence about a value outside the space.
    codes
        Number of trials by the hash of the code that runs them, the most frequent first.
    """

    name: str
    resolved: ResolvedStudy
    state: StudyState
    trials: Mapping[str, int]
    target: int
    left: int
    best: BestDesign | None
    busy_s: float
    rate_per_s: float | None
    cached_share: float | None
    proven_schedule_share: float | None
    quickly_proven_schedule_share: float | None
    why_infeasible: Mapping[str, int]
    failures: tuple[str, ...]
    outside: Mapping[str, str]
    codes: Mapping[str, int]

    def __repr__(self) -> str:
        complete = self.trials["complete"]
        return f"StudySummary({self.name!r}, {self.state}, {complete} of {self.target} trials)"

    @property
    def is_outdated(self) -> bool:
        """Whether another version of the cost model created the study."""
        return self.resolved.cost_model_version != current_version()

    @property
    def next_command(self) -> str:
        """The command that continues the study until its target."""
        return next_command(self.name, self.target, self.resolved)

    @property
    def left_s(self) -> float | None:
        """Seconds until a running study is done, at the rate so far."""
        if self.state != "running" or self.rate_per_s is None:
            return None
        return self.left / self.rate_per_s


def next_command(name: str, total: int, resolved: ResolvedStudy) -> str:
    """Return the command that continues a study until it has ``total`` complete trials."""
    if resolved.cost_model_version != current_version():
        return f"phaze-opt study copy {name} NEW --current-version"
    option = "" if total == resolved.spec.search.trials else f" --trials {total}"
    return f"phaze-opt study run {name}{option}"


class SummaryParts:
    """What takes long to read of a study; a page that stays open keeps some of it."""

    def __init__(self, study: StoredStudy) -> None:
        self._study = study

    def standing(self) -> Standing:
        """Return where the study stands."""
        return read_standing(self._study)

    def design(self, standing: Standing) -> BestDesign | None:
        """Return the best design with its evaluations."""
        return best_design(self._study, standing)

    def outside(self) -> dict[str, str]:
        """Return why no trial can find a baseline, by the names of those of which this holds."""
        resolved = self._study.resolved
        return {
            baseline.name: reason
            for baseline in resolved.baselines
            if (reason := outside_space(resolved, baseline)) is not None
        }

    def codes(self) -> dict[str, int]:
        """Count the trials by the hash of the code that ran them."""
        return self._study.office().codes()


def summarise(study: StoredStudy, parts: SummaryParts | None = None) -> StudySummary:
    """Return the state of a study; ``parts`` may keep what it has read before."""
    parts = parts or SummaryParts(study)
    office = study.office()
    # Read before the trials, so that a study that is done has all its trials.
    is_worked_on = presence.is_worked_on(study)
    counts, stopping, proven = office.counts(), office.stop_requested(), office.is_proven()
    # A study that an older program ran has tickets, but no target.
    target = office.target() or counts.done + counts.left or study.resolved.spec.search.trials
    standing = parts.standing()
    tally = standing.tally
    complete = tally.count("feasible", "infeasible")
    return StudySummary(
        name=study.name,
        resolved=study.resolved,
        state=_state(counts, target, is_worked_on, stopping, proven),
        trials={
            "complete": complete,
            "infeasible": tally.count("infeasible"),
            "failed": tally.count("failed"),
            # The trial of a worker that is gone is still marked as running until it is settled.
            "running": min(counts.running, tally.count("running")),
        },
        target=target,
        left=0 if proven else max(0, min(counts.left, target - complete)),
        best=parts.design(standing),
        busy_s=standing.busy_s,
        rate_per_s=complete / standing.busy_s if standing.busy_s > 0 else None,
        cached_share=_share(tally.total("cached"), tally.total("evaluated")),
        proven_schedule_share=_share(tally.total("proven"), tally.total("schedules")),
        quickly_proven_schedule_share=_share(tally.total("quickly_proven"), tally.total("needed")),
        why_infeasible=tally.violated,
        outside=parts.outside(),
        failures=tuple(office.reasons()),
        codes=parts.codes(),
    )


def summary_to_json_dict(summary: StudySummary) -> dict[str, Any]:
    """Return the state as ``study show --json`` prints it."""
    best = summary.best
    return {
        "study": summary.name,
        "state": summary.state,
        "trials": dict(summary.trials),
        "best": None if best is None else best_to_json_dict(summary.name, best),
        "rate_per_s": summary.rate_per_s,
        "cached_share": summary.cached_share,
        "proven_schedule_share": summary.proven_schedule_share,
        "quickly_proven_schedule_share": summary.quickly_proven_schedule_share,
        "cost_model_version": summary.resolved.cost_model_version,
        "spec_hash": summary.resolved.hash,
        "target": summary.target,
        "left": summary.left,
        "left_s": summary.left_s,
        "busy_s": summary.busy_s,
        "area_limit_mm2": summary.resolved.area_limit_mm2,
        "area_model": summary.resolved.spec.area.model,
        "why_infeasible": dict(summary.why_infeasible),
        "failures": list(summary.failures),
        "outside": dict(summary.outside),
        "code_hashes": dict(summary.codes),
    }


def _state(
    counts: TicketCounts, target: int, is_worked_on: bool, stopping: bool, proven: bool
) -> StudyState:
    """Return the state of a study; a single failed trial does not make it failed.

    A ticket or run whose lease has expired, or whose process has ended, does not keep a study
    running. Between two trials, and before the first, a run holds no ticket; after its last trial a
    study is no longer running.
    """
    if counts.running or (is_worked_on and not proven and counts.done < target):
        return "stopping" if stopping else "running"
    if proven:
        return "proven"
    if counts.left and counts.done < target:
        return "stopped"
    if counts.done:
        return "done"
    return "failed" if counts.failed else "new"


def _share(part: int, whole: int) -> float | None:
    """Return a share; ``None`` if the whole is 0."""
    return part / whole if whole else None
