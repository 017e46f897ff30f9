"""``phaze-opt workload``: list models, show the captured layers of one, capture one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.errors import InputError
from phaze_opt.units import counted

from .output import (
    ChangesOption,
    ForceOption,
    FrozenOption,
    JsonOption,
    LoraOption,
    LoraTargetsOption,
    ResidencyOption,
    check_outputs,
    print_json,
    print_rows,
    print_table,
    read_assignments,
    residency_choice,
    say,
    trained_options,
)

if TYPE_CHECKING:
    from phaze_opt.choices import ResidencyChoice
    from phaze_opt.passes.estimates import Chip
    from phaze_opt.workload.graph import Workload

_FACTORY = re.compile(r"(?!(gpt|llama|moe|hf):)[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``package.module:function``; ``gpt:``, ``llama:``, ``moe:`` and ``hf:`` begin models."""

app = typer.Typer(no_args_is_help=True, help="Look at models.")

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Zoo name, gpt:…, llama:…, moe:…, hf:PATH, or a configuration or capture (.json). "
        "+mtp behind a name, shape or configuration adds layers that predict further ahead, "
        "+images2 behind a configuration two images per sample.",
        show_default=False,
    ),
]
SequenceOption = Annotated[
    int | None, typer.Option(help="Tokens per sample, if not the model's own.")
]
SequenceParallelOption = Annotated[
    bool, typer.Option("--sequence-parallel", help="Split the sequence over tensor groups.")
]
GraphOption = Annotated[
    Path | None,
    typer.Option(help="Draw a layer's operators into this .html or .dot.", show_default=False),
]
LayerOption = Annotated[
    str | None, typer.Option(help="The layer to draw; the most frequent by default.")
]
ProblemsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="OUT",
        help="Write the passes of all layers as problems for 'phaze-opt schedule'.",
        show_default=False,
    ),
]
ChipOption = Annotated[
    str | None,
    typer.Option(
        help="Preset or file: draws times on this chip; the chip of the problems, too.",
        show_default="for the problems tpuv4-lanes",
    ),
]
ClusterOption = Annotated[
    str, typer.Option(help="Preset or file: the network of times and problems.")
]


@app.command("ls")
def list_all(as_json: JsonOption = False) -> None:
    """List the models that come with the program.

    Example: phaze-opt workload ls
    """
    from phaze_opt.workload.zoo import model_config, model_names

    rows = []
    for name in model_names():
        config = model_config(name)
        rows.append(
            {
                "name": name,
                "layers": config.layers,
                "hidden": config.hidden,
                "heads": config.heads,
                "sequence": config.sequence,
                "vocabulary": config.vocabulary,
            }
        )
    print_rows(rows, as_json)


@app.command()
def show(
    model: ModelArgument,
    tensor_parallel: Annotated[int, typer.Option(help="Tensor degree.")] = 1,
    microbatch: Annotated[int, typer.Option(help="Samples per pipeline step.")] = 1,
    sequence: SequenceOption = None,
    sequence_parallel: SequenceParallelOption = False,
    frozen: FrozenOption = None,
    lora_rank: LoraOption = 0,
    lora_targets: LoraTargetsOption = "",
    graph: GraphOption = None,
    layer: LayerOption = None,
    backward: Annotated[bool, typer.Option("--backward", help="Draw the backward.")] = False,
    schedule_problem: ProblemsOption = None,
    accelerator: ChipOption = None,
    changes: ChangesOption = None,
    cluster: ClusterOption = "tpuv4-ici-flat",
    residency: ResidencyOption = "whole",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a captured model layer by layer, per device and microbatch.

    With --json: model, sequence (tokens per sample), parameters (of the whole model, tied weights
    once), tensor_parallel, microbatch, sequence_parallel, and layers, one entry for each distinct
    layer of one device. A layer has name; count (occurrences in the model); parameters (on the
    device) and tied_parameters (those that another layer holds too); forward_flops and
    backward_flops (of matrix products, without recompute); stash_bytes and transient_bytes (each
    with none, selective and full, by recompute); output_bytes; forward_operators and
    backward_operators (counts by kind); and collective_bytes (whole tensors of both passes by kind
    of collective). These keys stay.

    Example: phaze-opt workload show bert-large --tensor-parallel 2 --graph block.html

    With an accelerator the drawing has what the chip runs: operators fused as there, each with its
    time.

    Example: phaze-opt workload show bert-large --graph block.html --accelerator h100

    Example: phaze-opt workload show bert-large --schedule-problem p.jsonl && phaze-opt schedule
    p.jsonl

    The problems say what may stay in the global buffer; with --residency tiles also which operators
    may run tile by tile.
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.workload.summary import summarise
    from phaze_opt.workload.zoo import load_workload

    check_outputs(graph, schedule_problem, force=force)
    workload = load_workload(
        model,
        tensor_parallel=(tensor_parallel,),
        microbatch=(microbatch,),
        sequence_parallel=sequence_parallel,
        sequence=sequence,
        **trained_options(frozen, lora_rank, lora_targets),
    )
    place = None if accelerator is None else _place(workload, accelerator, changes, cluster)
    if graph is not None:
        _draw(workload, layer, backward, graph, accelerator, place)
    if schedule_problem is not None:
        place = place or _place(workload, "tpuv4-lanes", changes, cluster)
        _write_problems(workload, place, schedule_problem, residency_choice(residency))
    summary = summarise(workload)
    if as_json:
        print_json(to_builtins(summary))
        return
    from phaze_opt.report.tables import summary_tables

    print_table(summary_tables(summary))


def _place(workload: Workload, accelerator: str, changes: list[str] | None, cluster: str) -> Chip:
    """Return what the layers run on."""
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.network.presets import load_cluster
    from phaze_opt.passes.estimates import Chip
    from phaze_opt.passes.graphs import default_fusion

    (variant,) = workload.variants
    chip = load_accelerator(accelerator, **read_assignments(changes))
    return Chip(chip, load_cluster(cluster, variant.tensor_parallel), default_fusion(chip))


def _write_problems(
    workload: Workload, place: Chip, path: Path, residency: ResidencyChoice
) -> None:
    """Write the passes of all layers as problems of the scheduler, a line each."""
    from phaze_opt.passes.estimates import schedule_problems
    from phaze_opt.scheduling.problem_file import to_row
    from phaze_opt.training import Training
    from phaze_opt.user_files import write_file

    (variant,) = workload.variants
    training = Training(variant.microbatch, variant.microbatch, residency=residency)
    problems = schedule_problems(variant, place, training)
    lines = [json.dumps(to_row(problem), ensure_ascii=False) for problem in problems]
    write_file(path, "\n".join(lines) + "\n")
    say(f"{path} holds {counted(len(lines), 'problem')}; 'phaze-opt schedule {path}' solves them.")


def _draw(
    workload: Workload,
    name: str | None,
    backward: bool,
    path: Path,
    accelerator: str | None,
    place: Chip | None,
) -> None:
    """Draw one pass of one layer, with times where it is known what it runs on."""
    from phaze_opt.errors import unknown_name
    from phaze_opt.workload.draw import write_drawing

    (variant,) = workload.variants
    layers = {layer.name: layer for layer in variant.layers}
    if name is None:
        most = max(range(len(variant.layers)), key=lambda index: variant.counts[index])
        name = variant.layers[most].name
    if name not in layers:
        raise unknown_name("layer", name, layers)
    chosen = layers[name].backward if backward else layers[name].forward
    direction = "backward" if backward else "forward"
    title, notes = f"{workload.model}: {direction} of {name}", []
    if place is not None:
        from phaze_opt.passes.estimates import estimate_layers
        from phaze_opt.report.words import operator_time_words
        from phaze_opt.training import Training

        batch = variant.microbatch
        ((estimated,),) = estimate_layers([variant], [place], Training(batch, batch))
        (estimated_pass,) = [
            candidate
            for of_layer in estimated.passes
            for candidate in of_layer
            if (candidate.layer, candidate.direction) == (name, direction)
        ]
        chosen, notes = estimated_pass.graph, operator_time_words(estimated_pass)
        title += f", every operator by itself on {accelerator}"
    write_drawing(chosen, title, path, notes)


@app.command()
def capture(
    model: Annotated[
        str,
        typer.Argument(help="A model as elsewhere, or package.module:factory.", show_default=False),
    ],
    output: Annotated[Path, typer.Option(help="File to write (.json).", show_default=False)],
    tensor_parallel: Annotated[list[int] | None, typer.Option(help="Repeat for more.")] = None,
    microbatch: Annotated[list[int] | None, typer.Option(help="Repeat for more.")] = None,
    sequence: SequenceOption = None,
    sequence_parallel: SequenceParallelOption = False,
    tokens_per_sample: Annotated[
        int | None,
        typer.Option(
            help="Of a factory's samples, for rates in tokens, if not what its layers and inputs "
            "show.",
            show_default=False,
        ),
    ] = None,
    frozen: FrozenOption = None,
    lora_rank: LoraOption = 0,
    lora_targets: LoraTargetsOption = "",
    force: ForceOption = False,
) -> None:
    """Capture a model into a file that machines without torch can read.

    With package.module:factory this RUNS THAT CODE, and no other command ever does. The factory is
    called with the microbatch and returns a torch module and its inputs. For other tensor
    degrees than 1 it returns a plan too, for example {"blocks.*.up": "colwise", "blocks.*.down":
    "rowwise", "head": "loss_parallel"}. How many tokens a sample has, for rates in tokens, its
    layers and inputs show; --tokens-per-sample says it where they do not. What needs no gradient
    (requires_grad), or is named by --frozen, is not trained.

    Example: phaze-opt workload capture my_model:make --microbatch 1 --microbatch 4 --output my.json
    """
    from phaze_opt.workload.workload_file import write_workload

    check_outputs(output, force=force)
    if _FACTORY.fullmatch(model):
        if lora_rank or lora_targets:
            raise InputError(
                "Adapters of a user's own module are those that it has itself, beside layers that "
                "need no gradient; leave out --lora and --lora-targets."
            )
        workload = _capture_user_module(
            model,
            tensor_parallel,
            microbatch,
            tokens_per_sample,
            sequence,
            sequence_parallel,
            frozen or (),
        )
    else:
        if tokens_per_sample is not None:
            raise InputError(
                f"--tokens-per-sample is {tokens_per_sample}, but {model} says its own; --sequence "
                "changes them."
            )
        from phaze_opt.workload.zoo import load_workload

        workload = load_workload(
            model,
            tensor_parallel=tensor_parallel or (1,),
            microbatch=microbatch or (1,),
            sequence_parallel=sequence_parallel,
            sequence=sequence,
            **trained_options(frozen, lora_rank, lora_targets),
        )
    write_workload(workload, output)
    variants = counted(len(workload.variants), "variant")
    tokens = f"{workload.sequence:,} tokens" if workload.sequence > 1 else "no known tokens"
    say(f"{variants} of {workload.parameters:,} parameters, {tokens} per sample, in {output}")


def _capture_user_module(
    factory: str,
    tensor_parallel: list[int] | None,
    microbatch: list[int] | None,
    tokens_per_sample: int | None,
    sequence: int | None,
    sequence_parallel: bool,
    frozen: Sequence[str],
) -> Workload:
    """Run the user's factory and capture what it makes."""
    from phaze_opt.workload.capture.user_module import capture as capture_module

    if sequence_parallel:
        raise InputError(
            "A user's own module is captured with the whole sequence on every device, because how "
            "to split that is not known; leave out --sequence-parallel."
        )
    if sequence is not None:
        if tokens_per_sample is not None:
            raise InputError("--sequence is the old name of --tokens-per-sample; give one of them.")
        say("--sequence of a factory is now called --tokens-per-sample.")
        tokens_per_sample = sequence
    say(f"running {factory}")
    return capture_module(
        factory,
        microbatch=microbatch or (1,),
        tokens_per_sample=tokens_per_sample,
        tensor_parallel=tensor_parallel or (1,),
        frozen=frozen,
    )
