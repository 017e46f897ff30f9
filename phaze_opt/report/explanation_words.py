"""Sentences of an explanation: speed, binding resources, memory, and changes that help."""

from __future__ import annotations

from collections.abc import Sequence

from phaze_opt.evaluation import Evaluation
from phaze_opt.explanation.explain import Explanation
from phaze_opt.explanation.fixes import Fix
from phaze_opt.explanation.gains import Gain
from phaze_opt.explanation.stage import LayerBinding, MemoryUse, StageTime
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.report.words import (
    RESOURCE_WORDS,
    causal_mfu_words,
    kind_words,
    padding_words,
    placement_words,
    ranged_words,
)
from phaze_opt.units import counted, format_bytes, format_number, format_seconds

_GAIN_WORDS = {
    "compute": "PE array rate +10 %",
    "lanes": "vector lane rate +10 %",
    "clock": "clock +10 % (arrays, lanes, GLB)",
    "glb": "GLB bandwidth +10 %",
    "hbm": "HBM bandwidth +10 %",
    "hbm_size": "HBM size +10 %",
    "glb_size": "GLB size +10 %",
    "network_latency": "network latency −10 %",
    "overhead": "time per operator −10 %",
    "overlap_data": "--overlap data",
    "overlap_experts": "--overlap experts",
    "overlap_all": "--overlap all",
    "launch_compiled": "--launch compiled",
    "launch_graphs": "--launch graphs",
    "even_rows": "--expert-imbalance 1",
    "dropless_rows": "--expert-capacity 0",
}
_MEMORY_UNITS = {"hbm_size": "GiB of HBM", "glb_size": "MiB of global buffer"}
_LEAST_GAIN = 0.0005
_RANGED_WORDS = {
    "arrays": "the rate of the arrays in long runs",
    "hbm": "the HBM",
    "host": "the host",
}
_LEAST_SHARE = 0.05


def gain_words(resource: str) -> str:
    """Name the change that a gain is of."""
    if resource.startswith("link_"):
        return f"network level {resource.removeprefix('link_')} bandwidth +10 %"
    if resource.startswith("taper_"):
        return f"network level {resource.removeprefix('taper_')} taper −10 %"
    return _GAIN_WORDS[resource]


def stage_words(stage: StageTime) -> str:
    """Name the stage with the largest load."""
    if stage.stages == 1:
        return "the only stage"
    return f"the busiest stage ({stage.stage} of 0 to {stage.stages - 1})"


def heavy_layers(layers: Sequence[LayerBinding]) -> list[LayerBinding]:
    """Return the distinct layers that matter in the whole model, the one with most time first."""

    def seconds(layer: LayerBinding) -> float:
        passes = (layer.forward, layer.backward, layer.recompute)
        return layer.count * sum(
            bound_pass.makespan_s for bound_pass in passes if bound_pass is not None
        )

    least_s = _LEAST_SHARE * sum(seconds(layer) for layer in layers)
    return sorted((layer for layer in layers if seconds(layer) >= least_s), key=seconds)[::-1]


def explanation_sentences(explanation: Explanation) -> list[str]:
    """Say in a few sentences why a point is as fast as it is, or why it does not fit."""
    evaluation, memory, stage = explanation.evaluation, explanation.memory, explanation.stage
    placement, time_s = evaluation.placement, evaluation.time_per_batch_s
    if placement is None or time_s is None or stage is None or memory is None:
        return [
            f"It does not fit: {evaluation.reason}",
            *_shortage_sentences(evaluation),
            *_search_sentences(explanation),
            *_fix_sentences(explanation.fixes),
        ]
    mfu = ", ".join(filter(None, (f"MFU {evaluation.mfu:.1%}", causal_mfu_words(evaluation))))
    return [
        f"It trains {format_number(evaluation.throughput_samples_per_s)} samples/s, "
        f"{format_seconds(time_s)} per batch ({mfu}), as "
        f"{placement_words(placement)}.",
        *_order_sentences(placement),
        *_leftover_sentences(evaluation),
        *_range_sentences(explanation),
        _time_sentence(stage, time_s),
        *_overlap_sentences(stage, explanation.overlap_gains),
        *_host_sentences(explanation),
        *_routing_sentences(explanation.routing_gains),
        _layer_sentence(heavy_layers(explanation.layers)[0]),
        _gain_sentence(explanation.gains),
        _memory_sentence(memory),
        *_bill_sentences(evaluation),
    ]


def _bill_sentences(evaluation: Evaluation) -> list[str]:
    """Say what decides what a sample costs: the price of the cluster, or its electricity."""
    bill = evaluation.bill
    if bill is None:
        return []
    parts = sorted(bill.device_usd.items(), key=lambda part: -part[1].central)
    (most, usd), *_ = parts
    price_usd = bill.device_price_usd
    share = bill.devices * price_usd / bill.tco_usd.central
    return [
        f"A million samples cost {ranged_words(bill.cost_usd_per_million_samples, 'USD')}: "
        f"{share:.0%} of it pays for devices, most of each for its {most} "
        f"({usd.central / price_usd:.0%}), the rest for electricity."
    ]


def _order_sentences(placement: Placement) -> list[str]:
    """Say how far the order of the stages' work may be from the best one, where it is searched."""
    if placement.order is None or placement.gap is None:
        return []
    schedule = placement.pipeline_schedule
    taken = "whole backwards, as under 1F1B" if placement.order == 0 else "weight gradients put off"
    if schedule == "zb-v":
        taken = "weight gradients put off, on two chunks of every stage"
    return [
        f"The best order that {schedule} finds has {taken}; no other order saves more than "
        f"{placement.gap:.2%} of the time."
    ]


def _range_sentences(explanation: Explanation) -> list[str]:
    """Say by how much chips of the same name differ, and which of their rates that comes from."""
    span_s, by_rate_s = explanation.evaluation.time_per_batch_range_s, explanation.range_by_rate_s
    if span_s is None or not by_rate_s:
        return []
    parts = ", ".join(
        f"{_RANGED_WORDS[rate]} alone {format_seconds(least_s)} to {format_seconds(most_s)}"
        for rate, (least_s, most_s) in sorted(
            by_rate_s.items(), key=lambda item: item[1][0] - item[1][1]
        )
    )
    least_s, most_s = span_s
    others = "chips of this name and hosts" if "host" in by_rate_s else "chips of this name"
    return [
        f"On other {others} a batch takes {format_seconds(least_s)} to "
        f"{format_seconds(most_s)} ({parts})."
    ]


def _leftover_sentences(evaluation: Evaluation) -> list[str]:
    """Say which devices are left idle, and which samples are trained without being asked for."""
    sentences = []
    if evaluation.unused_devices:
        sentences.append(f"It leaves {counted(evaluation.unused_devices, 'device')} idle.")
    if evaluation.padding_samples:
        sentences.append(f"It trains {padding_words(evaluation.padding_samples)}.")
    return sentences


def _overlap_sentences(stage: StageTime, more: Sequence[Gain]) -> list[str]:
    """Say how much communication is hidden and exposed, and which option would hide more."""
    total_s = sum(each.total_s for each in stage.communication)
    if total_s <= 0.0:
        return []
    hidden_s = sum(each.hidden_s for each in stage.communication)
    exposed = sorted(stage.communication, key=lambda each: -each.exposed_s)
    most = exposed[0]
    sentences = [
        f"It communicates {format_seconds(total_s)} per batch: {hidden_s / total_s:.0%} hidden "
        f"beside compute, {format_seconds(total_s - hidden_s)} exposed, most of it "
        f"{kind_words(most.kind)}."
    ]
    gaining = [gain for gain in more if gain.throughput_gain >= _LEAST_GAIN]
    if gaining:
        words = [f"{gain_words(g.resource)} ({g.throughput_gain:+.1%})" for g in gaining]
        sentences.append(f"More would be hidden with {_listed(words)}.")
    return sentences


def _host_sentences(explanation: Explanation) -> list[str]:
    """Name the pass that waits longest for the host, and say what recorded graphs would bring."""
    waiting = sorted(
        explanation.host_bound, key=lambda each: each.count * (each.device_s - each.host_s)
    )
    if not waiting:
        return []
    most = waiting[0]
    passes = counted(len(waiting), "pass", "passes")
    sentences = [
        f"The device waits for the host in {passes}, longest in {most.layer} {most.direction} "
        f"(×{most.count}): {counted(most.launches, 'launch', 'launches')} take "
        f"{format_seconds(most.host_s)}, the kernels {format_seconds(most.device_s)}."
    ]
    gaining = [g for g in explanation.launch_gains if g.throughput_gain >= _LEAST_GAIN]
    if gaining:
        words = [f"{gain_words(g.resource)} ({g.throughput_gain:+.1%})" for g in gaining]
        sentences.append(f"Fewer launches would bring {_listed(words)}.")
    return sentences


def _routing_sentences(gains: Sequence[Gain]) -> list[str]:
    """Say what rows cost that even routing does not give the experts."""
    words = [f"{gain_words(g.resource)} ({g.throughput_gain:+.1%})" for g in gains]
    return [f"Experts would have the rows of even routing with {_listed(words)}."] if words else []


def _shortage_sentences(evaluation: Evaluation) -> list[str]:
    """Say what the placement that needs least memory lacks, if the reason omits it."""
    misfit = evaluation.misfit
    if misfit is None or format_bytes(misfit.memory.total) in str(evaluation.reason):
        return []
    return [
        f"The placement that needs least memory takes {format_bytes(misfit.memory.total)} per "
        f"device, {format_bytes(misfit.excess_bytes)} too much."
    ]


def _search_sentences(explanation: Explanation) -> list[str]:
    """Say which degrees were searched without finding a placement that fits."""
    tensor_degrees = explanation.searched_tensor
    if not tensor_degrees or explanation.evaluation.misfit is None:
        return []
    listed = _listed([str(tensor_degree) for tensor_degree in tensor_degrees])
    noun = "tensor degree" if len(tensor_degrees) == 1 else "tensor degrees"
    return [f"Every pipeline depth at the {noun} {listed} was tried."]


def _time_sentence(stage: StageTime, time_s: float) -> str:
    """Name the largest parts of the time."""
    parts = sorted(stage.parts_s.items(), key=lambda item: -item[1])
    large = [(kind, seconds) for kind, seconds in parts if seconds >= _LEAST_SHARE * time_s]
    words = _listed([f"{kind_words(kind)} {seconds / time_s:.0%}" for kind, seconds in large])
    return f"On {stage_words(stage)} the time goes to {words}."


def _layer_sentence(layer: LayerBinding) -> str:
    """Name the resources that bind the layer with the most time."""
    clauses = []
    for name, binding in (("forward", layer.forward), ("backward", layer.backward)):
        if binding.makespan_s <= 0.0:
            continue
        shares = {resource: binding.share(resource) for resource in binding.bound_s}
        largest = sorted(shares, key=lambda resource: -shares[resource])[:3]
        words = [
            f"{RESOURCE_WORDS[resource]} {shares[resource]:.0%}"
            for resource in largest
            if shares[resource] >= _LEAST_SHARE
        ]
        clause = f"{name} ({format_seconds(binding.makespan_s)}) by {_listed(words)}"
        idle = binding.schedule_s / binding.makespan_s
        if idle >= _LEAST_SHARE:
            clause += f", {idle:.0%} with idle cores"
        clauses.append(clause)
    return f"The layer that counts is {layer.name} (×{layer.count}), bound {'; '.join(clauses)}."


def _gain_sentence(gains: Sequence[Gain]) -> str:
    """Say how much throughput a tenth more of each resource brings."""
    some = [gain for gain in gains if gain.throughput_gain >= _LEAST_GAIN]
    if not some:
        return "A tenth more of any single resource brings next to nothing."
    words = [f"{g.throughput_gain:+.1%} from {gain_words(g.resource)}" for g in some[:3]]
    none = [gain_words(gain.resource) for gain in gains if gain.throughput_gain == 0.0]
    rest = f"; {_listed(none)} would change nothing" if none else ""
    return f"Throughput would gain {_listed(words)}{rest}."


def _memory_sentence(memory: MemoryUse) -> str:
    """Say how full the memory is, and name its largest kinds."""
    kinds = sorted(memory.bytes_by_kind.items(), key=lambda item: -item[1])
    words = _listed([f"{kind_words(kind)} {format_bytes(size)}" for kind, size in kinds[:2]])
    share = memory.total_bytes / memory.usable_bytes
    return (
        f"The fullest stage holds {format_bytes(memory.total_bytes)} per device, {share:.1%} of "
        f"the usable {format_bytes(memory.usable_bytes)}; most is {words}."
    )


def _fix_sentences(fixes: Sequence[Fix]) -> list[str]:
    """Name the fastest change with which the run fits, and the memory that would do."""
    fitting = [fix for fix in fixes if fix.feasible]
    runs = [fix for fix in fitting if not _MEMORY_UNITS.keys() & {*fix.kinds}]
    sentences = ["No change of the training run that was tried makes it fit."]
    if runs:
        best = runs[0]
        single = any(len(fix.kinds) == 1 for fix in runs)
        alone = "" if single else ", as no single change does"
        sentences = [
            f"The fastest change of the training run that makes it fit is "
            f"{' '.join(best.options)}{alone}: {format_number(best.throughput_samples_per_s)} "
            f"samples/s, {format_seconds(best.time_per_batch_s or 0.0)} per batch at "
            f"{best.placement}."
        ]
    larger = [fix for fix in fitting if _MEMORY_UNITS.keys() & {*fix.kinds}]
    if larger:
        size, unit = larger[0].options[0].rpartition("=")[2], _MEMORY_UNITS[larger[0].kinds[0]]
        sentences.append(
            f"As it is, it would need {size} {unit}, and then train "
            f"{format_number(larger[0].throughput_samples_per_s)} samples/s."
        )
    return sentences


def _listed(words: Sequence[str]) -> str:
    """Join words as a person lists them."""
    if len(words) < 2:
        return "".join(words) or "nothing of size"
    return f"{', '.join(words[:-1])} and {words[-1]}"
