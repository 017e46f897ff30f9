"""The options that name one point, and the point that they name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phaze_opt.choices import (
    AttentionKind,
    ContextKind,
    Dispatcher,
    DispatchPrecision,
    FusionMode,
    GradientDtype,
    Launch,
    OptimizerName,
    Overlap,
    PipelineScheduleName,
    RankOrderChoice,
    Recompute,
    SoftwareName,
)
from phaze_opt.errors import InputError
from phaze_opt.precision import AttentionPrecision, Fp8Scaling, PrecisionName
from phaze_opt.training_options import LINEAR_LAYERS
from phaze_opt.units import GIB

from .output import (
    FrozenOption,
    LoraOption,
    LoraTargetsOption,
    PointChangesOption,
    ResidencyOption,
    read_assignments,
    residency_choice,
    say,
    trained_options,
)

if TYPE_CHECKING:
    from phaze_opt.evaluation import Evaluation
    from phaze_opt.explanation.fixes import Fix
    from phaze_opt.hardware.chip_file import AcceleratorPreset
    from phaze_opt.point import Point
    from phaze_opt.training import Training
    from phaze_opt.workload.graph import Workload
    from phaze_opt.workload.trained import Trained
    from phaze_opt.workload.zoo import LoadWorkload


_OF_SOFTWARE = (
    *("optimizer", "overlap", "gather_copies", "launch"),
    *("gradient_dtype", "accumulation_dtype", "fused_accumulation"),
)
"""Options of the training run that software sets."""


@dataclass(frozen=True)
class PointOptions:
    """The options, as given."""

    model: Annotated[
        str,
        typer.Option(
            help="Zoo name, gpt:…, llama:…, moe:…, hf:PATH, or a configuration or capture (.json). "
            "+mtp behind a name, shape or configuration adds layers that predict further ahead, "
            "+images2 behind a configuration two images per sample."
        ),
    ]
    accelerator: Annotated[
        str,
        typer.Option(
            help="Preset, or TOML or JSON file. Of evaluate also several kinds, with how many "
            "there are of each: a100-80=64,h100=32; every pipeline stage is on one of them."
        ),
    ]
    cluster: Annotated[str, typer.Option(help="Network preset, or TOML or JSON file.")]
    devices: Annotated[int, typer.Option(help="How many accelerators.")]
    global_batch: Annotated[int, typer.Option(help="Samples per optimizer step.")]
    microbatch: Annotated[int, typer.Option(help="Samples per pipeline step.")]
    changes: PointChangesOption = None
    recompute: Annotated[Recompute, typer.Option(help="What runs again.")] = "none"
    software: Annotated[
        SoftwareName | None,
        typer.Option(
            help="Sets optimizer, overlap, launch, fusion, gather copies, types of gradients and "
            "how they are added up as its runs have them, where they are not given, and its kernel "
            "of fused attention.",
            show_default=False,
        ),
    ] = None
    optimizer: Annotated[
        OptimizerName | None,
        typer.Option(
            help="Its state and step, sgd by default; adam-bf16 has moments in bf16, adam-foreach "
            "steps as PyTorch does by default.",
            show_default=False,
        ),
    ] = None
    placement: Annotated[
        str,
        typer.Option(
            help="solve, expert, or PPxDPxTP: pipeline, data and tensor degrees; PPxDPxTPxEPxCP "
            "with those of experts and sequences too."
        ),
    ] = "solve"
    stages: Annotated[
        str,
        typer.Option(
            help="Transformer blocks of each stage of a given placement, as 3,4,4,3; or all "
            "layers, embedding and head among them. Even by default.",
            show_default=False,
        ),
    ] = ""
    rank_order: Annotated[
        RankOrderChoice,
        typer.Option(
            help="Orders of ranks that are tried, tensor-parallel groups innermost: replicas of a "
            "stage or stages of a replica next (two), or also some replicas inside the stages and "
            "others outside (solve)."
        ),
    ] = "two"
    zero: Annotated[int, typer.Option(help="ZeRO stage, 0 to 3.")] = 0
    zero_group: Annotated[
        int,
        typer.Option(
            help="Neighbouring replicas among which ZeRO shares out; the groups hold copies "
            "(hybrid sharding). 0: all replicas. Needs given degrees."
        ),
    ] = 0
    recompute_early_stop: Annotated[
        bool,
        typer.Option(
            "--recompute-early-stop",
            help="Full recompute ends where the backward needs no more, as PyTorch's does.",
        ),
    ] = False
    gather_copies: Annotated[
        bool | None,
        typer.Option(
            "--gather-copies/--no-gather-copies",
            help="Copy what ZeRO 3 gathers, as PyTorch's FSDP does; not by default.",
            show_default=False,
        ),
    ] = None
    pipeline_schedule: Annotated[
        PipelineScheduleName | None,
        typer.Option(
            help="1f1b by default; interleaved with --interleave; zb-…: weight gradients apart.",
            show_default=False,
        ),
    ] = None
    interleave: Annotated[int, typer.Option(help="Chunks of layers per pipeline stage.")] = 1
    overlap: Annotated[
        Overlap | None,
        typer.Option(
            help="Communication beside compute: of the replicas (data, by default; partial: as "
            "XLA), also of tokens to their experts (experts), or also tensor-parallel (all).",
            show_default=False,
        ),
    ] = None
    gradient_dtype: Annotated[
        GradientDtype | None,
        typer.Option(
            help="In which replicas reduce gradients, if not the optimizer's.", show_default=False
        ),
    ] = None
    expert_parallel: Annotated[
        int, typer.Option(help="Neighbouring replicas that share the routed experts out.")
    ] = 1
    expert_tensor_parallel: Annotated[
        int,
        typer.Option(
            help="Neighbouring devices over which each expert is split, if not those of the "
            "tensor-parallel group (0); with another number --sequence-parallel."
        ),
    ] = 0
    dispatcher: Annotated[Dispatcher, typer.Option(help="What sends tokens to their experts.")] = (
        "nccl"
    )
    expert_imbalance: Annotated[
        float, typer.Option(help="Rows of the device with the most, relative to even routing.")
    ] = 1.0
    dispatch_precision: Annotated[
        DispatchPrecision,
        typer.Option(help="In what tokens go to experts that multiply in fp8; back in bf16."),
    ] = "bf16"
    expert_capacity: Annotated[
        float,
        typer.Option(
            help="Rows of every expert, relative to even routing: tokens beyond are dropped, fewer "
            "filled up. 0: the tokens that come."
        ),
    ] = 0.0
    recompute_parts: Annotated[
        str,
        typer.Option(
            help="What selective recompute runs again, with commas: core_attn, layernorm, mlp, "
            "moe, moe_act, mla_up_proj, shared_experts; or the policy of a framework, as minimal "
            "or torch-op.",
            show_default=False,
        ),
    ] = ""
    offload_parts: Annotated[
        str,
        typer.Option(
            help="What waits on the host from forward to backward: layer (all that is kept), or, "
            "with commas, the inputs of attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, "
            "expert_fc1, moe_act.",
            show_default=False,
        ),
    ] = ""
    offload_share: Annotated[
        float, typer.Option(help="Share of the layers whose activations do so.")
    ] = 1.0
    offload_optimizer: Annotated[
        float, typer.Option(help="Share of the optimizer state that waits on the host, 0 to 1.")
    ] = 0.0
    context_parallel: Annotated[
        int, typer.Option(help="Neighbouring devices that share every sequence.")
    ] = 1
    context_kind: Annotated[
        ContextKind,
        typer.Option(
            help="How they attend to all of it: keys and values go around beside attention (ring), "
            "an all-to-all by heads (a2a), or keys and values are gathered."
        ),
    ] = "ring"
    precision: Annotated[
        PrecisionName,
        typer.Option(
            help="In what linear layers multiply, as Transformer Engine's recipes; loss of "
            "accuracy is not modelled."
        ),
    ] = "bf16"
    fp8_scaling: Annotated[
        Fp8Scaling,
        typer.Option(
            help="Whence a tensor in fp8 has its one scale: from its own largest element, or those "
            "of steps before."
        ),
    ] = "current"
    fp8_transposes: Annotated[
        bool | None,
        typer.Option(
            "--fp8-transposes/--no-fp8-transposes",
            help="Products in fp8 read by columns from transposed copies; as the chip needs.",
            show_default=False,
        ),
    ] = None
    fp8_primary_weights: Annotated[
        bool | None,
        typer.Option(
            "--fp8-primary-weights/--no-fp8-primary-weights",
            help="Hold weights in fp8 only, none in bf16.",
            show_default=False,
        ),
    ] = None
    fp8_param_gather: Annotated[
        bool | None,
        typer.Option(
            "--fp8-param-gather/--no-fp8-param-gather",
            help="Gather weights in fp8 among replicas (ZeRO).",
            show_default=False,
        ),
    ] = None
    bf16_layers_at_start: Annotated[
        int,
        typer.Option(help="First layers that stay in bf16 whatever --precision says."),
    ] = 0
    bf16_layers_at_end: Annotated[int, typer.Option(help="Last layers that do so.")] = 0
    linear_precisions: Annotated[
        str,
        typer.Option(
            help="Linear layers in another precision: NAME=PRECISION, commas between; NAME is "
            f"{', '.join(LINEAR_LAYERS)}."
        ),
    ] = ""
    attention_precision: Annotated[
        AttentionPrecision,
        typer.Option(
            help="In what fused attention multiplies, where a kernel was measured; loss of "
            "accuracy is not modelled."
        ),
    ] = "bf16"
    accumulation_dtype: Annotated[
        GradientDtype | None,
        typer.Option(
            help="In which gradients are held and added up, if not as the optimizer does.",
            show_default=False,
        ),
    ] = None
    fused_accumulation: Annotated[
        bool | None,
        typer.Option(
            "--fused-accumulation/--no-fused-accumulation",
            help="Products that make weight gradients add them up; not by default.",
            show_default=False,
        ),
    ] = None
    launch: Annotated[
        Launch | None,
        typer.Option(
            help="How the host starts kernels: recorded (by default), after fusion, or one by one.",
            show_default=False,
        ),
    ] = None
    fusion: Annotated[
        FusionMode | None,
        typer.Option(
            help="epilogue by default; elementwise on chips that run one operator at a time.",
            show_default=False,
        ),
    ] = None
    power_limit_w: Annotated[
        float | None, typer.Option(help="Average dynamic power a device may take.")
    ] = None
    economics: Annotated[
        str,
        typer.Option(
            metavar="FILE|KEY=VALUE,…",
            help="What those who pay state: grid, energy_usd_per_kwh, pue, lifetime_years, margin, "
            "volume, host_usd, network_usd, network (share or levels). No time depends on it.",
            show_default=False,
        ),
    ] = ""
    sequence: Annotated[
        int | None, typer.Option(help="Tokens per sample, if not the model's own.")
    ] = None
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split the sequence over tensor groups.")
    ] = False
    attention: Annotated[
        AttentionKind | None,
        typer.Option(help="Of the model, if not its own.", show_default=False),
    ] = None
    frozen: FrozenOption = None
    lora_rank: LoraOption = 0
    lora_targets: LoraTargetsOption = ""
    residency: ResidencyOption = "whole"
    proof: Annotated[
        bool, typer.Option("--proof", help="Solve open schedules further, with CP-SAT.")
    ] = False

    def title(self, workload: Workload) -> str:
        """Name the point on one line."""
        kinds = self.kinds() or {self.accelerator: self.devices}
        chips = " and ".join(f"{devices} × {name}" for name, devices in kinds.items())
        known = workload.sequence > 1 and "sequence=" not in self.model
        sequence = f", sequence {workload.sequence:,}," if known else ""
        training, trained = self._training(), self.trained_parts
        parts = "" if trained is None else f", {trained.words}"
        return (
            f"{self.model}{sequence} on {chips}, {self.cluster}, "
            f"global batch {self.global_batch}, microbatch {self.microbatch}, "
            f"recompute {training.recompute_parts or training.recompute}, "
            f"{training.optimizer}{self._narrow}{parts}"
        )

    @property
    def _narrow(self) -> str:
        """Say in what linear layers multiply, where it is not 16 bits, and what that leaves out."""
        narrow = {"linear layers": self.precision, "attention": self.attention_precision}
        said = [f"{what} in {name}" for what, name in narrow.items() if name != "bf16"]
        if not said:
            return ""
        ends = {"first": self.bf16_layers_at_start, "last": self.bf16_layers_at_end}
        but = " and ".join(f"the {which} {count}" for which, count in ends.items() if count)
        but = f" but for {but} layers" if but else ""
        but += f", {self.linear_precisions}" if self.linear_precisions else ""
        return f", {' and '.join(said)}{but} (loss of accuracy is not modelled)"

    def point(self) -> Point:
        """Read the options, and capture the model at every tensor degree the placement may use."""
        from phaze_opt.named_point import named_point
        from phaze_opt.network.level_values import with_level_values
        from phaze_opt.network.presets import load_cluster

        _, of_network = self._changes()
        return named_point(
            self.model,
            self.preset().accelerator,
            with_level_values(
                load_cluster(self.cluster, self.devices), of_network, f"changes of {self.cluster}"
            ),
            self._training(),
            self.placement,
            sequence=self.sequence,
            attention=self.attention,
            **self.trained,
            fusion=self._given("fusion"),
            power_limit_w=self.power_limit_w,
            prove=self.proof,
            stages=self.stages,
            economics=self.economics,
        ).point

    def kinds(self) -> dict[str, int]:
        """Return how many devices there are of each kind, where the accelerator says several."""
        from phaze_opt.hardware.presets import read_kinds

        found = read_kinds(self.accelerator)
        for name, _ in found:
            if [each for each, _ in found].count(name) > 1:
                raise InputError(f"accelerator states {name} twice; state it once.")
        if found and self.changes:
            raise InputError(
                "Several kinds of device do not go with --set; state what differs in a file with "
                "base, and name that."
            )
        return dict(found)

    def preset(self) -> AcceleratorPreset:
        """Return the accelerator with its changes, and where its numbers come from."""
        from phaze_opt.hardware.kernels import with_kernel
        from phaze_opt.hardware.presets import configure_accelerator
        from phaze_opt.software import SOFTWARE

        of_chip, _ = self._changes()
        preset = configure_accelerator(self.accelerator, of_chip)
        kernel = SOFTWARE[self.software].attention_kernel if self.software else None
        # Nobody measured every kernel on every chip.
        return with_kernel(preset, kernel if kernel in preset.kernels else None)

    def _changes(self) -> tuple[dict[str, str], dict[str, object]]:
        """Return the changed numbers of the chip, and those of the network's levels."""
        from phaze_opt.network.level_values import NETWORK

        pairs = read_assignments(self.changes)
        of_network = {name: value for name, value in pairs.items() if name.startswith(NETWORK)}
        of_chip = {name: value for name, value in pairs.items() if name not in of_network}
        return of_chip, {name: _read_value(value) for name, value in of_network.items()}

    def warn_of_assumptions(self, evaluation: Evaluation) -> None:
        """Name on stderr what the accelerator's file leaves out and what decides the answer."""
        from phaze_opt.explanation.assumptions import binding_assumptions
        from phaze_opt.report.words import assumption_words

        preset = self.preset()
        for assumption in binding_assumptions(preset.assumed, evaluation):
            say(assumption_words(assumption, preset.accelerator))

    def beside(self, fix: Fix) -> Fix:
        """Name the memory of a fix as the line names it, so that it replaces what stands there."""
        if "hbm_bytes" not in read_assignments(self.changes):
            return fix

        def named(option: str) -> str:
            gib = option.partition("--set hbm_gib=")[2]
            return f"--set hbm_bytes={int(gib) * GIB}" if gib else option

        return replace(fix, options=tuple(map(named, fix.options)))

    def _training(self) -> Training:
        """Join the options of the training run."""
        from phaze_opt.training import Training, recompute_with

        by_default: PipelineScheduleName = "interleaved" if self.interleave > 1 else "1f1b"
        return Training(
            global_batch=self.global_batch,
            microbatch=self.microbatch,
            recompute=recompute_with(self.recompute_parts, self.recompute),
            recompute_parts=self.recompute_parts,
            recompute_early_stop=self.recompute_early_stop,
            offload_parts=self.offload_parts,
            offload_share=self.offload_share,
            offload_optimizer=self.offload_optimizer,
            sequence_parallel=self.sequence_parallel,
            zero=self.zero,
            zero_group=self.zero_group,
            pipeline_schedule=self.pipeline_schedule or by_default,
            interleave=self.interleave,
            rank_order=self.rank_order,
            residency=residency_choice(self.residency),
            expert_parallel=self.expert_parallel,
            expert_tensor_parallel=self.expert_tensor_parallel,
            dispatcher=self.dispatcher,
            dispatch_precision=self.dispatch_precision,
            expert_imbalance=self.expert_imbalance,
            expert_capacity=self.expert_capacity,
            precision=self.precision,
            attention_precision=self.attention_precision,
            bf16_layers_at_start=self.bf16_layers_at_start,
            bf16_layers_at_end=self.bf16_layers_at_end,
            linear_precisions=self.linear_precisions,
            fp8_scaling=self.fp8_scaling,
            fp8_transposes=self.fp8_transposes,
            **self._fp8_weights(),
            context_parallel=self.context_parallel,
            context_kind=self.context_kind,
            **{name: value for name in _OF_SOFTWARE if (value := self._given(name)) is not None},
        )

    def _fp8_weights(self) -> dict[str, Any]:
        """Return whether weights are held and gathered in fp8, as given or as software does."""
        from phaze_opt.software import SOFTWARE

        usual = SOFTWARE[self.software].fp8_weights(self.precision) if self.software else {}
        given = {name: getattr(self, name) for name in ("fp8_primary_weights", "fp8_param_gather")}
        return usual | {name: value for name, value in given.items() if value is not None}

    def _given(self, name: str) -> Any:
        """Return an option as it is given, or as the software has it; ``None`` where neither is."""
        from phaze_opt.software import SOFTWARE

        given = getattr(self, name)
        if given is not None or self.software is None:
            return given
        return getattr(SOFTWARE[self.software], name)

    @property
    def load_workload(self) -> LoadWorkload:
        """A function that loads the model under other options."""
        from phaze_opt.workload.zoo import model_loader

        return model_loader(self.model, self.sequence, self.attention, self.trained_parts)

    @property
    def trained_parts(self) -> Trained | None:
        """What of the model is trained, where it is not all."""
        from phaze_opt.workload.trained import trained_parts

        return trained_parts(**self.trained)

    @property
    def trained(self) -> dict[str, Any]:
        """What of the model is trained, as arguments of `load_workload`."""
        return trained_options(self.frozen, self.lora_rank, self.lora_targets)


def _read_value(text: str) -> object:
    """Read a value as a file would state it; what is none there is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
