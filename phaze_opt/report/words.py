"""Sentences about an evaluation, used on the terminal and in the dashboard alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from phaze_opt.degraded import Degraded, DegradedRun
from phaze_opt.economics.bill import Bill
from phaze_opt.evaluation import Evaluation
from phaze_opt.explanation.assumptions import BindingAssumption
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import chip_values, in_units
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.estimates import EstimatedPass
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.ranged import Ranged
from phaze_opt.units import counted, format_bytes, format_number, format_seconds

if TYPE_CHECKING:
    from phaze_opt.study.proving import PassProofs  # whose module opens databases

_MOST_STAGES = 16
"""Stages of a longer pipeline are not listed in a sentence."""

RESOURCE_WORDS = {
    "compute": "tensor cores",
    "lanes": "vector lanes",
    "glb": "GLB bandwidth",
    "hbm": "HBM bandwidth",
    "link": "network",
    "overhead": "time between operators",
}
_KIND_WORDS = {
    "tensor_collectives": "tensor-parallel collectives",
    "token_exchanges": "tokens to their experts and back",
    "transfer": "pipeline transfers",
    "offload": "to the host and back",
    "stash": "stashes",
    "transient": "working set",
}
_UNITS = {
    "gb_per_s": "GB/s",
    "bytes_per_s": "B/s",
    "bytes_per_cycle": "B/cycle",
    "gib": "GiB",
    "mib": "MiB",
    "kib": "KiB",
    "mb": "MB",
    "bytes": "B",
    "ghz": "GHz",
    "hz": "Hz",
    "us": "µs",
    "tflops": "TFLOP/s",
    "s": "s",
}
"""Units by the endings of names, the longest of those that may be mistaken first."""

_AXIS_WORDS = {
    "num_tc": "TC",
    "num_vc": "VC",
    "pe_x": "array width",
    "pe_y": "array height",
    "pe_vc": "lanes per VC",
}
_ABBREVIATIONS = ("hbm", "glb", "l2", "tc", "vc")
_LEAST_SHARE = 0.005


def operator_time_words(estimated: EstimatedPass) -> list[str]:
    """Say how long every operator of a pass takes by itself, in both of its modes."""
    every = map(format_seconds, estimated.estimates.all_cores.latency_s.tolist())
    if not estimated.accelerator.concurrent_operators:
        return list(every)
    one_core = map(format_seconds, estimated.estimates.one_core.latency_s.tolist())
    pairs = zip(estimated.graph.operators, every, one_core, strict=True)
    return [
        f"{on_all} on all cores, {on_one} on one" if operator.gemms or operator.vector else on_all
        for operator, on_all, on_one in pairs
    ]


def axis_words(name: str) -> str:
    """Name a number that may be searched, with its unit: ``hbm_gb_per_s`` is "HBM [GB/s]"."""
    words, unit = _name_and_unit(name)
    return f"{words} [{unit}]" if unit else words


def value_of_axis(name: str, value: object, *, bare: bool = False) -> str:
    """Write the value of such a number: "HBM 1,600 GB/s", or ``bare`` "1,600"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = str(value)
    else:
        text = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"
    words, unit = _name_and_unit(name)
    return text if bare else " ".join([words, text, *([unit] if unit else [])])


def _name_and_unit(name: str) -> tuple[str, str]:
    """Split the name of a number into words and the unit that it carries."""
    ending = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), None)
    stem = name.removesuffix(f"_{ending}") if ending else name
    words = _AXIS_WORDS.get(stem) or " ".join(
        part.upper() if part in _ABBREVIATIONS else part for part in stem.split("_")
    )
    return words, _UNITS[ending] if ending else ""


def placement_words(placement: Placement) -> str:
    """Describe the degrees of a placement, and a pipeline schedule that is not 1F1B."""
    pipeline, data, tensor = placement.pipeline, placement.data, placement.tensor
    shared = f" × context-parallel {placement.context}" if placement.context > 1 else ""
    experts = f", experts shared out over {placement.expert}" if placement.expert > 1 else ""
    if placement.expert_tensor:
        experts += f", each expert on {counted(placement.expert_tensor, 'device')}"
    named = placement.pipeline_schedule
    order = f", {named}" if pipeline > 1 and named != "1f1b" else ""
    return (
        f"{counted(pipeline, 'stage')} × {counted(data, 'replica')} × tensor-parallel {tensor}"
        f"{shared}{experts}{order} ({placement.degrees_text})"
    )


def proof_words(placement: Placement) -> str | None:
    """Say what is proven of a placement; ``None`` where it was given."""
    if placement.gap is None:
        return None
    if placement.status == "optimal":
        return "optimal: no other placement is faster"
    if placement.order is not None:
        return f"feasible: the work of the stages alone takes {placement.gap:.2%} less"
    return f"feasible: another placement saves {placement.gap:.2%} of the time at most"


def microbatch_words(placement: Placement) -> str:
    """Count the microbatches of a placement."""
    return f"{placement.microbatches:,} per replica and batch"


def device_words(placement: Placement, unused_devices: int) -> str:
    """Count the devices that run a stage, and those that are left idle."""
    used = f"{placement.devices:,} used"
    return f"{used}, {unused_devices:,} idle" if unused_devices else used


def padding_words(padding_samples: int) -> str:
    """Say that more samples are trained than the global batch has; see `Evaluation`."""
    return (
        f"{counted(padding_samples, 'sample')} per batch beyond the global batch, which "
        "microbatch × replicas does not divide; throughput does not count "
        f"{'it' if padding_samples == 1 else 'them'}"
    )


def evaluation_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Say all that is to be said of a whole run, or why there is nothing: names and sentences."""
    placement = evaluation.placement
    if placement is None or evaluation.time_per_batch_s is None:
        facts = [("infeasible", str(evaluation.reason))]
    else:
        speed = format_number(evaluation.throughput_samples_per_s)
        facts = [
            ("throughput", f"{speed} samples/s"),
            ("time per batch", batch_time_words(evaluation)),
            ("per device", rate_words(evaluation)),
            ("MFU", mfu_words(evaluation)),
            *placement_facts(placement),
            *_recompute_facts(evaluation),
            ("devices", device_words(placement, evaluation.unused_devices)),
            ("memory", memory_words(placement)),
        ]
        if evaluation.padding_samples:
            facts.append(("padding", padding_words(evaluation.padding_samples)))
        facts.append(("power", power_words(evaluation)))
        if evaluation.bill is not None:
            facts += bill_facts(evaluation.bill)
    area = [] if evaluation.accelerators else [("area", area_words(evaluation))]
    return [*facts, *area, ("bound by", binding_words(evaluation))]


def degraded_facts(degraded: Degraded) -> list[tuple[str, str]]:
    """Say what is left of a run on a degraded cluster, as it stands and placed again."""
    return [
        ("as it stands", _degraded_words(degraded)),
        ("placed again", _degraded_words(degraded.replaced)),
    ]


def _degraded_words(run: DegradedRun) -> str:
    """Say how fast a run on a degraded cluster is, and where; or why there is none."""
    if run.degrees is None:
        return f"infeasible: {run.reason}"
    change = "slower" if run.loss >= 0.0 else "faster"
    words = (
        f"{format_number(run.throughput_samples_per_s)} samples/s, {abs(run.loss):.1%} {change}: "
        f"{run.degrees} on {run.devices:,} devices"
    )
    if not 1 < len(run.stages) <= _MOST_STAGES:
        return words
    return f"{words}, stages of {', '.join(map(str, run.stages))} layers"


def _recompute_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Say which recompute was found, where it was searched for."""
    if not evaluation.recompute:
        return []
    return [("recompute", f"{evaluation.recompute}: no other is faster")]


def placement_facts(placement: Placement) -> list[tuple[str, str]]:
    """Say which degrees a placement has, and what is proven of it."""
    proof = proof_words(placement)
    return [
        ("placement", placement_words(placement)),
        *([] if proof is None else [("proof", proof)]),
        ("microbatches", microbatch_words(placement)),
    ]


def batch_time_words(evaluation: Evaluation) -> str:
    """Say how long a batch takes, and by how much chips of the same name may differ from that."""
    central_s, span_s = evaluation.time_per_batch_s, evaluation.time_per_batch_range_s
    if central_s is None:
        return "–"
    words = format_seconds(central_s)
    if span_s is None:
        return words
    least_s, most_s = span_s
    share = max(central_s - least_s, most_s - central_s) / central_s
    return (
        f"{words} ± {share:.0%} (chips of this name: {format_seconds(least_s)} to "
        f"{format_seconds(most_s)})"
    )


def rate_words(evaluation: Evaluation) -> str:
    """Say what each device of the cluster achieves."""
    tokens, tflops = evaluation.tokens_per_s_per_device, evaluation.tflops_per_device
    if tflops is None:
        return "–"
    words = f"{format_number(tflops)} TFLOP/s"
    return words if tokens is None else f"{format_number(tokens)} tokens/s, {words}"


def mfu_words(evaluation: Evaluation) -> str:
    """Say which share of the peak trains the model, and which works for it at all."""
    notes = [causal_mfu_words(evaluation)]
    if evaluation.hfu is not None and evaluation.hfu != evaluation.mfu:
        notes.append(f"HFU, with recompute: {share_words(evaluation.hfu)}")
    words = "; ".join(filter(None, notes))
    return share_words(evaluation.mfu) + (f" ({words})" if words else "")


def causal_mfu_words(evaluation: Evaluation) -> str:
    """Say what the MFU is without the scores that masks hide; nothing where that is the same."""
    causal = share_words(evaluation.mfu_causal)
    if evaluation.mfu_causal is None or causal == share_words(evaluation.mfu):
        return ""
    return f"{causal} with causal attention counted by half"


def neighbour_words(cluster: Cluster) -> Iterator[str]:
    """Say level by level which ranks are neighbours, with rank 0 as the example.

    Ranks are numbered from the innermost level outwards.
    """
    unit = 1
    for index, level in enumerate(cluster.levels):
        what = "devices" if unit == 1 else f"groups of {unit:,}"
        if level.group_size is None:
            joins, last = f"all {what}", "…"
        else:
            joins = f"{level.group_size:,} {what}"
            joins += f" = {unit * level.group_size:,} devices" if unit > 1 else ""
            last = f"… {unit * (level.group_size - 1):,}" if level.group_size > 3 else ""
        ranks = [f"{unit * step:,}" for step in range(1, min(3, level.group_size or 3))]
        if not level.is_direct:
            near = f"on it, rank 0 reaches ranks {', '.join([*ranks, last]).rstrip(', ')} at once"
        else:
            steps = [unit]
            for extent in level.axes[:-1]:
                steps.append(steps[-1] * extent)
            near = (
                f"neighbours of rank 0 along its axes: ranks {', '.join(f'{s:,}' for s in steps)}"
            )
        yield f"Level {index} ({level.topology}) joins {joins}; {near}."
        unit *= level.group_size or 1


def pass_proof_words(proofs: PassProofs) -> str:
    """Say how many passes of the distinct layers are scheduled best, and what proved it."""
    methods = ", ".join(f"{count} by {method}" for method, count in proofs.methods.items())
    words = f"{proofs.proven} of {proofs.passes} have the shortest schedule, proven"
    words += f" ({methods})" if methods else ""
    if proofs.proven == proofs.passes:
        return words
    words += f", gap at most {proofs.gap:.1%}"
    if proofs.effort is None:
        return f"{words}; the end of a run solves them further"
    return f"{words} after an effort of {proofs.effort:,} states"


def memory_words(placement: Placement) -> str:
    """Say what the fullest device holds."""
    totals = [stage.memory_bytes.total for stage in placement.stages]
    return f"{format_bytes(max(totals))} on the fullest device"


def area_words(evaluation: Evaluation) -> str:
    """Say how large a chip is under each area model, or why nobody knows."""
    models = (("phaze-22nm", evaluation.area_mm2), ("chip", evaluation.area_chip_mm2))
    known = [f"{mm2:.4g} mm² by {model}" for model, mm2 in models if mm2 is not None]
    if not known:
        return "unknown: a buffer lies outside the table of SRAM macros"
    return f"{', '.join(known)} (relative budgets, not die sizes)"


def assumption_words(assumption: BindingAssumption, chip: Accelerator) -> str:
    """Say that a number which nobody stated decides the answer, and what to write instead."""
    field = assumption.field
    value = chip_values(chip)[field]
    stated_as, number = in_units(field, value) or (field, value)
    if assumption.resource == "memory":
        effect = "the run does not fit it"
    else:
        effect = (
            f"{assumption.share:.0%} of the operators' time is bound by "
            f"{RESOURCE_WORDS[assumption.resource]}"
        )
    return (
        f"warning: the accelerator's file does not state {stated_as}, which is {number:g} "
        f"({assumption.origin}), and {effect}."
    )


def power_words(evaluation: Evaluation) -> str:
    """Say how much power a device takes, and whether its board may."""
    words = (
        f"{evaluation.power_w_per_device:.4g} W per device on average, and "
        f"{evaluation.static_power_w_per_device:.3g} W of leakage"
    )
    if evaluation.is_above_tdp:
        words += f"; more than the {evaluation.tdp_w:,g} W that its board is rated for"
    return words


def bill_facts(bill: Bill) -> list[tuple[str, str]]:
    """Say what a run takes at the wall, costs and emits, and how far that is known."""
    dies = f"{bill.dies_per_package} × " if bill.dies_per_package > 1 else ""
    die_mm2 = bill.silicon_mm2 / bill.dies_per_package
    embodied_kg = sum(part.central for part in bill.embodied_kg.values())
    return [
        ("at the wall", f"{ranged_words(bill.wall_power_w_per_device, 'W')} per device"),
        (
            "cost",
            f"{ranged_words(bill.cost_usd_per_million_samples, 'USD')} per million samples; "
            f"{ranged_words(bill.tco_usd, 'USD')} for the cluster with its electricity; a chip of "
            f"{dies}{die_mm2:.4g} mm² costs {format_number(bill.made_usd)} USD to make, a device "
            f"{format_number(bill.device_price_usd)}",
        ),
        (
            "carbon",
            f"{ranged_words(bill.carbon_kg_per_million_samples, 'kg CO2e')} per million samples; "
            f"{format_number(embodied_kg)} kg were emitted to make a device",
        ),
    ]


def ranged_words(figure: Ranged, unit: str) -> str:
    """Write a figure, by how much it may be off, and its ends."""
    words = f"{format_number(figure.central)} {unit}"
    most = max(figure.high - figure.central, figure.central - figure.low)
    if most == 0.0:
        return words
    span = f"{format_number(figure.low)} to {format_number(figure.high)}"
    return f"{words} ± {most / figure.central:.0%} ({span})"


def power_warning(evaluation: Evaluation) -> str:
    """Warn of a device that takes more than its board may, and say what that means."""
    total_w = evaluation.power_w_per_device + evaluation.static_power_w_per_device
    return (
        f"warning: a device takes {total_w:.4g} W on average, but its board is rated for "
        f"{evaluation.tdp_w:,g} W; a real one would lower its clock and be slower. "
        "--power-limit-w, and max_power_w of a study, refuse such a run."
    )


def binding_words(evaluation: Evaluation) -> str:
    """Say which resources bind the operators, and in which share of their time."""
    parts = [
        f"{RESOURCE_WORDS.get(name, name)} {share:.0%}"
        for name, share in evaluation.bound_by_share.items()
        if share >= _LEAST_SHARE
    ]
    return ", ".join(parts)


def time_words(evaluation: Evaluation) -> str:
    """Say where the time of a batch goes, largest part first; nothing where it is infeasible."""
    whole_s = evaluation.time_per_batch_s or 0.0
    parts = sorted(evaluation.time_breakdown_s.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{kind_words(kind)} {seconds / whole_s:.1%}"
        for kind, seconds in parts
        if seconds >= _LEAST_SHARE * whole_s
    )


def kind_words(kind: str) -> str:
    """Name a part of the time of a batch, or a kind of memory."""
    return _KIND_WORDS.get(kind, kind.replace("_", " "))


def share_words(share: float | None) -> str:
    """Write a share; a dash where there is nothing to share."""
    return "–" if share is None else f"{share:.1%}"
