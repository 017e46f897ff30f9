"""How a study, and its best design, can be run again: commands, and the study file."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from phaze_opt.codec import to_builtins, toml_value
from phaze_opt.errors import PhazeError
from phaze_opt.printing import printable
from phaze_opt.spec.designs import training_of
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.summary import StudySummary
from phaze_opt.training import Training

_OPTIONS = (
    "microbatch",
    "recompute",
    "optimizer",
    "zero",
    "pipeline_schedule",
    "interleave",
    "rank_order",
    "overlap",
    "launch",
    "gradient_dtype",
    "expert_parallel",
    "dispatcher",
    "dispatch_precision",
    "expert_imbalance",
    "precision",
    "attention_precision",
    "accumulation_dtype",
    "context_parallel",
    "context_kind",
    "recompute_parts",
    "expert_tensor_parallel",
    "expert_capacity",
    "bf16_layers_at_start",
    "bf16_layers_at_end",
    "fp8_scaling",
    "linear_precisions",
    "offload_parts",
    "offload_share",
    "offload_optimizer",
)
"""Fields of `Training` that are options of ``evaluate`` with a value."""

_SWITCHES = {
    "sequence_parallel": "--sequence-parallel",
    "recompute_early_stop": "--recompute-early-stop",
    "gather_copies": "--gather-copies",
    "fused_accumulation": "--fused-accumulation",
    "fp8_primary_weights": "--fp8-primary-weights",
    "fp8_param_gather": "--fp8-param-gather",
}
"""Fields that are switches, by what is written where they differ from the default."""

_EITHER_WAY = ("fp8_transposes",)
"""Fields that are switches which may be on or off; unsaid by default."""

_LINE = 76
_NOTHING: tuple[Any, ...] = (None, [], {})


def reproduce_commands(summary: StudySummary) -> list[str]:
    """Return commands, lines for a shell, that give the answer of a study again.

    The first ones run the study anew from its file (`study_file`), the others evaluate its best
    design alone. These are left out where ``evaluate`` cannot state the design: several workloads,
    a searched network, options that it does not have.
    """
    name = shlex.quote(summary.name)
    commands = [f"phaze-opt study create {name}.toml", f"phaze-opt study run {name}"]
    best = summary.best
    if best is not None:
        chip = f"{summary.name}-best.toml"
        point = _evaluate_command(best, chip)
        commands.append(f"phaze-opt study best {name} --accelerator-toml {shlex.quote(chip)}")
        commands += [point] if point else []
    return commands


def verify_commands(name: str) -> list[str]:
    """Return commands, lines for a shell, that write the certificate of a study and check it."""
    file = shlex.quote(f"{name}-certificate.json")
    return [
        f"phaze-opt study enumerate {shlex.quote(name)} --certificate {file}",
        f"phaze-opt study verify {file}",
    ]


def study_file(spec: StudySpec) -> str:
    """Write a spec as the study file that reads back as it; what has no value is left out."""
    plain: dict[str, Any] = {
        name: value for name, value in to_builtins(spec).items() if value not in _NOTHING
    }
    tables = {name: value for name, value in plain.items() if isinstance(value, dict)}
    workloads = plain.pop("workloads", [])
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items() if name not in tables]
    for title, table in [
        *(("[[workloads]]", workload) for workload in workloads),
        *((f"[{name}]", table) for name, table in tables.items()),
    ]:
        rows = [
            f"{_key(key)} = {_toml(entry)}" for key, entry in table.items() if entry not in _NOTHING
        ]
        lines += ["", title, *rows]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    """Write plain data as a TOML value; tables stand on one line."""
    if isinstance(value, dict):
        rows = [
            f"{_key(key)} = {_toml(entry)}" for key, entry in value.items() if entry is not None
        ]
        return f"{{ {', '.join(rows)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return toml_value(value)


def _key(name: str) -> str:
    """Write the name of a value; one with dots stands in quotes."""
    return name if name.replace("_", "").isalnum() else toml_value(name)


def _evaluate_command(best: BestDesign, chip: str) -> str | None:
    """Write the command that evaluates a design; ``None`` where there is none."""
    spec = best.spec
    if len(spec.runs) > 1 or any(name.startswith("network.") for name in best.point.by_name):
        return None
    run, chosen = spec.runs[0], best.metrics.runs[0].chosen
    options = {**best.design.options, **chosen}
    try:
        training = training_of(options, run.global_batch)
    except PhazeError:
        return None
    stated = _training_options(training)
    if stated is None:
        return None
    given: dict[str, object] = {
        "--model": run.model,
        "--accelerator": chip,
        "--cluster": best.design.cluster_name,
        "--devices": best.design.cluster.devices,
        "--global-batch": training.global_batch,
    }
    sequence = run.sequence if run.sequence is not None else spec.sequence
    attention = options.get("attention") or run.attention or spec.attention
    given |= {"--sequence": sequence} if sequence is not None else {}
    given |= {"--attention": attention} if attention is not None else {}
    given |= {"--placement": spec.placement} if spec.placement != "solve" else {}
    given |= {"--lora": spec.lora_rank} if spec.lora_rank else {}
    given |= {"--lora-targets": ",".join(spec.lora_targets)} if spec.lora_targets else {}
    pairs = [*given.items(), *(("--frozen", pattern) for pattern in spec.frozen)]
    # No name that a command takes holds a control character; one in a damaged row ends no line.
    words = [f"{option} {shlex.quote(printable(str(value)))}" for option, value in pairs]
    return broken_command(["phaze-opt evaluate", *words, *stated])


def broken_command(words: Sequence[str]) -> str:
    """Join the program and the options of a command, on lines that a shell joins again."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > _LINE:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def _training_options(training: Training) -> list[str] | None:
    """Write the options of a training run that differ from those that ``evaluate`` assumes."""
    default = Training(training.global_batch, training.microbatch)
    changed: Mapping[str, object] = {
        field.name: getattr(training, field.name)
        for field in dataclasses.fields(Training)
        if getattr(training, field.name) != getattr(default, field.name)
    }
    if changed.keys() - {*_OPTIONS, *_SWITCHES, *_EITHER_WAY, "residency"}:
        return None
    words = [f"--microbatch {training.microbatch}"]
    words += [
        f"--{name.replace('_', '-')} {changed[name]}" for name in _OPTIONS[1:] if name in changed
    ]
    words += [
        f"--{'' if changed[name] else 'no-'}{name.replace('_', '-')}"
        for name in _EITHER_WAY
        if name in changed
    ]
    if "residency" in changed:
        words.append(f"--residency {training.residency or 'none'}")
    return words + [option for name, option in _SWITCHES.items() if name in changed]
