"""``phaze-opt workload``: the models, and what capturing one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import JsonOption, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Look at models.")

ModelArgument = Annotated[
    str, typer.Argument(help="Zoo name, gpt:…, llama:…, or a captured .json.", show_default=False)
]
SequenceOption = Annotated[
    int | None, typer.Option(help="Tokens per sample, if not the model's own.")
]
SequenceParallelOption = Annotated[
    bool, typer.Option("--sequence-parallel", help="Split the sequence over tensor groups.")
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
    if as_json:
        print_json(rows)
        return
    from phaze_opt.report.tables import rows_table

    print_table(rows_table(rows))


@app.command()
def show(
    model: ModelArgument,
    tensor_parallel: Annotated[int, typer.Option(help="Width of the tensor group.")] = 1,
    microbatch: Annotated[int, typer.Option(help="Samples per pipeline step.")] = 1,
    sequence: SequenceOption = None,
    sequence_parallel: SequenceParallelOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a captured model layer by layer, per device and microbatch.

    Example: phaze-opt workload show bert-large --tensor-parallel 2 --microbatch 4
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.workload.summary import summarise
    from phaze_opt.workload.zoo import load_workload

    workload = load_workload(
        model,
        tensor_parallel=(tensor_parallel,),
        microbatch=(microbatch,),
        sequence_parallel=sequence_parallel,
        sequence=sequence,
    )
    summary = summarise(workload)
    if as_json:
        print_json(to_builtins(summary))
        return
    from phaze_opt.report.tables import rows_table
    from phaze_opt.units import format_bytes

    rows = [
        {
            "layer": layer.name,
            "count": layer.count,
            "parameters": f"{layer.parameters:,}",
            "forward GFLOP": f"{layer.forward_flops / 1e9:.4g}",
            "backward GFLOP": f"{layer.backward_flops / 1e9:.4g}",
            "stash none / selective / full": " / ".join(
                format_bytes(size)
                for size in (
                    layer.stash_bytes.none,
                    layer.stash_bytes.selective,
                    layer.stash_bytes.full,
                )
            ),
            "output": format_bytes(layer.output_bytes),
            "operators": sum(layer.forward_operators.values())
            + sum(layer.backward_operators.values()),
        }
        for layer in summary.layers
    ]
    print(f"{model}: {summary.parameters:,} parameters, {summary.sequence} tokens per sample")
    print_table(rows_table(rows))


@app.command()
def capture(
    model: ModelArgument,
    output: Annotated[Path, typer.Option(help="File to write (.json).", show_default=False)],
    tensor_parallel: Annotated[list[int] | None, typer.Option(help="Repeat for more.")] = None,
    microbatch: Annotated[list[int] | None, typer.Option(help="Repeat for more.")] = None,
    sequence: SequenceOption = None,
    sequence_parallel: SequenceParallelOption = False,
) -> None:
    """Capture a model into a file that machines without torch can read.

    Example: phaze-opt workload capture gpt2-xl --tensor-parallel 1 --tensor-parallel 2
    --output gpt2-xl.json
    """
    from phaze_opt.workload.workload_file import write_workload
    from phaze_opt.workload.zoo import load_workload

    workload = load_workload(
        model,
        tensor_parallel=tensor_parallel or (1,),
        microbatch=microbatch or (1,),
        sequence_parallel=sequence_parallel,
        sequence=sequence,
    )
    write_workload(workload, output)
    print(f"{len(workload.variants)} variants in {output}")
