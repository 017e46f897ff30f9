"""Sentences about studies and their designs, used on the terminal and in the dashboard alike."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from phaze_opt.report.words import axis_words, share_words, value_of_axis
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.axis_names import AxisKind, kind_of
from phaze_opt.spec.objectives import BOUNDED_OBJECTIVES, ObjectiveKind
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.neighbourhood import DesignStep
from phaze_opt.study.summary import StudySummary
from phaze_opt.study.trials import Metrics, TrialRecord
from phaze_opt.units import counted, format_number, format_seconds
from phaze_opt.whole_space.exhaustive import Enumeration

ORDER_WORDS = (
    "Values within 0.1 % count as equal: the smaller HBM comes first then, the smaller area, and "
    "the lower energy."
)
"""Says why a value may stand above a slightly better one; see `phaze_opt.spec.ordering`."""

IMPORTANCE_WORDS = (
    "Optuna Dashboard's hyperparameter importance is something else, and may say the opposite: it "
    "shares out the variance of all trials, also of those that no designer would consider."
)
"""Says why two pictures of what is important differ."""

_CHIP = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib", "hbm_gib")
_TRAINING = ("microbatch", "recompute")


def models_words(spec: StudySpec) -> str:
    """Name the models of a study, with the tokens per sample and what is trained as it states."""
    words = []
    for run in spec.runs:
        tokens = run.sequence or spec.sequence
        words.append(f"{run.name} ({tokens:,} tokens per sample)" if tokens else run.name)
    trained = spec.trained
    return ", ".join(words if trained is None else [*words, trained.words])


def accelerator_words(params: Mapping[str, Scalar]) -> str:
    """Describe the chip of a design by its parameters; see `BestDesign.params`."""
    hbm = f"HBM {params['hbm_gib']} GiB" if params["hbm_gib"] else "no HBM"
    words = (
        f"{params['num_tc']} TC of {params['pe_x']}×{params['pe_y']}, "
        f"{params['num_vc']} VC of {params['pe_vc']} lanes, "
        f"GLB {params['glb_mib']} MiB, {hbm}"
    )
    return words + _others(params, ("chip",), _CHIP)


def training_words(params: Mapping[str, Scalar]) -> str:
    """Describe the training options of a design, and what is searched of its network."""
    words = ", ".join(f"{name} {params[name]}" for name in _TRAINING if name in params)
    words += _others(params, ("training", "network"), _TRAINING)
    return words.removeprefix(", ") or "as the study says"


def _others(params: Mapping[str, Scalar], kinds: Container[AxisKind], named: Container[str]) -> str:
    """List the other parameters of some kinds."""
    return "".join(
        f", {value_of_axis(name, value)}"
        for name, value in params.items()
        if name not in named and kind_of(name) in kinds
    )


def value_words(spec: StudySpec, values: Sequence[float]) -> str:
    """Write the values of a design with their units."""
    return "; ".join(
        _value_words(spec, kind, value)
        for kind, value in zip(spec.objective_kinds, values, strict=True)
    )


def _value_words(spec: StudySpec, kind: ObjectiveKind, value: float) -> str:
    """Write one value."""
    if len(spec.runs) > 1 and kind.name != "area":
        return f"{value:.4f} × the {kind.name.replace('_', ' ')} of {spec.reference}"
    return f"{format_number(value)} {kind.unit}"


def value_header(spec: StudySpec, place: int) -> str:
    """Name the values of an objective with their unit; of several workloads they are ratios."""
    kind = spec.objective_kinds[place]
    ratio = len(spec.runs) > 1 and kind.name != "area"
    unit = f"× {spec.reference}" if ratio else kind.unit
    return f"{kind.name.replace('_', ' ')} [{unit}]"


def design_words(spec: StudySpec, point: DesignPoint, metrics: Metrics) -> str:
    """Describe a trial in one line: its values or why it has none, its area and its point."""
    value = value_words(spec, metrics.values) if metrics.feasible else f"no: {metrics.reason}"
    area = "" if metrics.area_mm2 is None else f"; {metrics.area_mm2:,.1f} mm²"
    chosen = metrics.runs[0].chosen.items() if len(metrics.runs) == 1 else ()
    values = ", ".join(value_of_axis(name, value) for name, value in (*point.values, *chosen))
    return f"{value}{area}; {values}"


def trial_state_words(trial: TrialRecord) -> str:
    """Name the state of a trial; of an infeasible one the limit that rules it out."""
    if trial.kind != "infeasible":
        return trial.kind
    limit = None if trial.metrics is None else trial.metrics.limit
    words = {"area": "over area", "memory": "not fitting", None: "infeasible"}
    return words.get(limit, f"no: {limit}")


def step_label(best: BestDesign, step: DesignStep) -> str:
    """Name a step from the best design: "TC 4 → 8"."""
    stands = value_of_axis(step.axis, best.point[step.axis])
    if step.value is None:
        return f"{stands}, a step {'up' if step.up else 'down'}"
    label = f"{stands} → {value_of_axis(step.axis, step.value, bare=True)}"
    followers = ", ".join(map(axis_words, step.followers))
    return f"{label} (with {followers})" if followers else label


def step_words(best: BestDesign, step: DesignStep) -> str:
    """Say what a step from the best design brings, or why it brings nothing."""
    metrics = step.metrics
    if step.value is None:
        return "end of the axis"
    if metrics is None:
        return "not evaluated yet"
    if metrics.feasible:
        change = metrics.value / best.metrics.value - 1.0
        return f"{format_number(metrics.value)} ({change:+.1%})"
    if metrics.limit == "area":
        return "above the area" if _is_above_best(best, metrics) else "below the least area"
    words = {"chip": "not buildable", "options": "options exclude each other"}
    words["memory"] = "does not fit"
    return words.get(metrics.limit or "", f"above the limit of the {metrics.limit}")


def _is_above_best(best: BestDesign, metrics: Metrics) -> bool:
    """Whether a chip is larger than that of the best design."""
    return (metrics.area_mm2 or 0.0) > (best.metrics.area_mm2 or 0.0)


def objective_words(spec: StudySpec) -> str:
    """Say what a study searches for."""
    directions = [
        f"{'most' if kind.maximise else 'least'} {kind.name.replace('_', ' ')}"
        for kind in spec.objective_kinds
    ]
    words = " and ".join(directions)
    if len(spec.runs) == 1:
        return words
    return f"{words}, {spec.aggregate.replace('-', ' ')} relative to {spec.reference}"


def limit_words(spec: StudySpec) -> str | None:
    """Say what follows for the search from what no bound knows; nothing if they know all."""
    (first, *others) = spec.objectives
    if first not in BOUNDED_OBJECTIVES and not others and spec.sampler == "climb":
        return f"No bound is known for the objective {first}: the sampler is climb, not bound."
    if not spec.unbounded_limits or first not in BOUNDED_OBJECTIVES:
        return None
    unknown = _unknown_words(spec)
    if spec.sampler == "bound":
        return (
            f"{unknown}: the sampler bound tries the fastest designs first, whether they keep it "
            "or not, and may find none that does; without search.sampler, climb is chosen."
        )
    return f"{unknown}: the sampler is climb, not bound." if spec.sampler == "climb" else None


def enumeration_limit_words(spec: StudySpec) -> str | None:
    """Say the same of an enumeration."""
    if not spec.unbounded_limits:
        return None
    return (
        f"{_unknown_words(spec)}: every design that may be faster than the best one that keeps it "
        "is evaluated."
    )


def _unknown_words(spec: StudySpec) -> str:
    return f"The bounds say little of {' and '.join(spec.unbounded_limits)}"


def ratio_words(best: BestDesign) -> list[str]:
    """Compare a design with every baseline, one line each."""
    lines = []
    for baseline in best.baselines:
        ratio = best.ratio(baseline)
        run = baseline.runs[0]
        if baseline.values is None or run is None or ratio is None:
            lines.append(f"{baseline.name} fits under no training option")
            continue
        beyond = "" if baseline.within_area else ", itself above the area limit"
        at = f" at {training_words(run.params)}" if len(baseline.runs) == 1 else ""
        lines.append(
            f"{ratio:.3f} × {baseline.name} ({value_words(best.spec, baseline.values)}{at}{beyond})"
        )
    return lines


def outside_words(summary: StudySummary) -> list[str]:
    """Say which baselines no trial can find, and why, one line each."""
    return [f"{name}: {reason}" for name, reason in summary.outside.items()]


def code_words(codes: Mapping[str, int], cost_model_version: str) -> str | None:
    """Say that trials of a study were run by different code; ``None`` where they were not.

    Parameters
    ----------
    codes
        Number of trials by the hash of the code.
    cost_model_version
        That all of them name.
    """
    if len(codes) < 2:
        return None
    counts = ", ".join(f"{code} in {counted(trials, 'trial')}" for code, trials in codes.items())
    return (
        f"workers run different code that calls itself cost model {cost_model_version} ({counts}): "
        "their numbers may differ; run the same build of phaze-opt everywhere"
    )


def state_words(summary: StudySummary) -> str:
    """Name the state of a study, and say how a stopped one goes on."""
    if summary.state == "stopping":
        return "stopping after the running trials"
    if summary.state == "stopped":
        return f"stopped; '{summary.next_command}' goes on"
    if summary.state == "proven":
        return "proven, no other design is better in this cost model"
    return summary.state


def trial_words(summary: StudySummary) -> str:
    """Count the trials."""
    trials = summary.trials
    limits = sorted(summary.why_infeasible.items())
    why = ", ".join(f"{count} by {limit}" for limit, count in limits)
    text = f"{trials['complete']:,} of {summary.target:,} complete"
    text += f", of which {trials['infeasible']} infeasible"
    text += f" ({why})" if why else ""
    for kind in ("failed", "running"):
        text += f", {trials[kind]} {kind}" if trials[kind] else ""
    return text


def effort_words(summary: StudySummary) -> str:
    """Say how long the search took, and how much of it was new."""
    if summary.rate_per_s is None:
        return "no trial yet"
    text = f"{format_seconds(summary.busy_s)} in trials, {summary.rate_per_s:.3g} trials/s"
    if summary.left_s is not None:
        text += f", about {format_seconds(summary.left_s)} left"
    return text


def cached_words(summary: StudySummary) -> str:
    """Say which share of the evaluations was found, not computed."""
    return f"{share_words(summary.cached_share)} of the evaluations were known before"


def proof_words(summary: StudySummary) -> str:
    """Say which share of the layers' schedules is proven optimal."""
    share = share_words(summary.proven_schedule_share)
    return f"{share} of the trials' layer schedules are known to be the shortest"


def certified_words(summary: StudySummary, enumeration: Enumeration) -> str:
    """Name the certified optimum of a space, and how near the best trial is to it."""
    points = f"{counted(enumeration.points, 'design')} of the space"
    if not enumeration.top:
        return f"none of the {points} is feasible"
    metrics = enumeration.top[0].metrics
    value = value_words(summary.resolved.spec, metrics.values)
    words = f"no other of the {points} is better than {value}"
    if summary.best is None:
        return words
    return f"{words}; the best trial has {summary.best.metrics.value / metrics.value:.1%} of it"
