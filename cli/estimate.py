"""``phaze-opt estimate``: one operator on one accelerator, or a file of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from phaze_opt.choices import CollectiveName, Dispatcher, KernelName, Layout
from phaze_opt.errors import InputError
from phaze_opt.precision import AttentionPrecision, PrecisionName
from phaze_opt.user_files import CsvRow, number_cell, read_rows, whole_cell

from .output import ChangesOption, read_assignments, takes

if TYPE_CHECKING:
    from phaze_opt.estimator.single import SingleEstimate
    from phaze_opt.hardware.accelerator import Accelerator
    from phaze_opt.network.estimate import CollectiveEstimate

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Time of one operator or collective.")

OverheadOption = Annotated[
    float, typer.Option("--call-overhead-us", help="What a framework adds per call, in µs.")
]
CsvOption = Annotated[
    Path | None,
    typer.Option("--csv", help="One operator per line; JSON lines in the same order come out."),
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="JSON is what this command prints anyway.")
]
SustainedOption = Annotated[
    bool,
    typer.Option("--sustained", help="One of many in a long run, at the power limit; not alone."),
]


@dataclass(frozen=True)
class EstimateOptions:
    """The options that all operators of a chip share."""

    accelerator: Annotated[str, typer.Option(help="Preset name or TOML file.")]
    changes: ChangesOption = None
    cores: Annotated[
        int | None, typer.Option(help="Cores the operator may use; all by default.")
    ] = None
    call_overhead_us: OverheadOption = 0.0
    csv_file: CsvOption = None
    as_json: JsonLinesOption = True

    def load_accelerator(self, kernel: str | None = None) -> Accelerator:
        """Read the accelerator with its changed fields, as a kernel of attention uses it."""
        from phaze_opt.hardware.kernels import with_kernel
        from phaze_opt.hardware.presets import configure_accelerator

        preset = configure_accelerator(self.accelerator, read_assignments(self.changes))
        return with_kernel(preset, kernel).accelerator

    @property
    def call_overhead_s(self) -> float:
        """What a framework adds per call."""
        return self.call_overhead_us * 1e-6


@app.command()
@takes(EstimateOptions)
def gemm(
    options: EstimateOptions,
    m: Annotated[int | None, typer.Option("--m", help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Reduction.")] = None,
    batch: Annotated[int, typer.Option(help="Independent products.")] = 1,
    layout: Annotated[
        Layout,
        typer.Option(
            help="Forward, data gradient, or weight gradient that adds to an accumulator in fp32."
        ),
    ] = "tn",
    precision: Annotated[
        PrecisionName, typer.Option(help="What is multiplied; the result is bf16.")
    ] = "bf16",
    sustained: SustainedOption = False,
) -> None:
    """Estimate a matrix product, or every row of a CSV with columns m,n,k.

    There may be the columns batch, layout and precision.

    Example: phaze-opt estimate gemm --accelerator a100-80 --m 8192 --n 4096 --k 4096 --json
    """
    from phaze_opt.calibration.measured_files import read_layout, read_precision
    from phaze_opt.estimator.single import estimate_gemm
    from phaze_opt.workload.graph import Gemm

    chip = options.load_accelerator()

    def one(shape: Gemm, own: Layout) -> SingleEstimate:
        return estimate_gemm(
            shape, chip, options.cores, options.call_overhead_s, layout=own, sustained=sustained
        )

    def one_row(row: CsvRow) -> SingleEstimate:
        m, n, k = (whole_cell(row, column) for column in ("m", "n", "k"))
        shape = Gemm(m, n, k, batch=whole_cell(row, "batch", "1"))
        shape = replace(shape, precision=read_precision(row, precision))
        return one(shape, read_layout(row, layout))

    if options.csv_file is not None:
        _run_csv(options.csv_file, ("m", "n", "k"), one_row)
        return
    if m is None or n is None or k is None:
        raise InputError("Give --m, --n and --k, or --csv FILE.")
    _print(one(Gemm(m, n, k, batch, precision=precision), layout))


@app.command()
@takes(EstimateOptions)
def vector(
    options: EstimateOptions,
    op: Annotated[str | None, typer.Option(help="softmax, layernorm, gelu, ...")] = None,
    shape: Annotated[str | None, typer.Option(help="ROWSxCOLUMNS, for example 4096x1024.")] = None,
) -> None:
    """Estimate a vector operator (bf16), or every row of a CSV with columns op,rows,columns.

    Example: phaze-opt estimate vector --accelerator a100-80 --op softmax --shape 4096x1024
    """
    from phaze_opt.estimator.single import estimate_vector

    chip = options.load_accelerator()

    def one(kind: str, rows: int, columns: int) -> SingleEstimate:
        return estimate_vector(kind, rows, columns, chip, options.cores, options.call_overhead_s)

    def one_row(row: CsvRow) -> SingleEstimate:
        return one(row["op"] or "", whole_cell(row, "rows"), whole_cell(row, "columns"))

    if options.csv_file is not None:
        _run_csv(options.csv_file, ("op", "rows", "columns"), one_row)
        return
    if op is None or shape is None:
        raise InputError("Give --op and --shape, or --csv FILE.")
    _print(one(op, *_shape(shape)))


@app.command()
@takes(EstimateOptions)
def attention(
    options: EstimateOptions,
    batch: Annotated[int, typer.Option(help="Samples.")] = 1,
    sequence: Annotated[int | None, typer.Option(help="Queries, and as many keys.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key and value heads; as many as query heads by default.")
    ] = None,
    head_dim: Annotated[int, typer.Option(help="Elements of one head.")] = 128,
    head_dim_v: Annotated[
        int, typer.Option(help="Of the values; 0: as many as of queries and keys.")
    ] = 0,
    window: Annotated[int, typer.Option(help="Latest keys that a query sees; 0: all.")] = 0,
    causal: Annotated[
        bool, typer.Option(help="Whether a query sees only the keys up to its own position.")
    ] = True,
    backward: Annotated[
        bool, typer.Option("--backward", help="The gradients instead of the forward.")
    ] = False,
    kernel: Annotated[
        KernelName | None,
        typer.Option(help="Whose constants hold; those of the chip's default kernel if left out."),
    ] = None,
    precision: Annotated[
        AttentionPrecision,
        typer.Option(help="What it multiplies in; loss of accuracy is not modelled."),
    ] = "bf16",
    sustained: SustainedOption = False,
) -> None:
    """Estimate a fused attention core, or every row of a CSV.

    The columns are batch,sequence,heads,kv_heads,head_dim[,head_dim_v][,window][,causal]
    [,backward]; the last two are 0 or 1.

    Example: phaze-opt estimate attention --accelerator h100 --sequence 8192 --heads 32 --kv-heads 8
    """
    from phaze_opt.calibration.measured_files import (
        ATTENTION_COLUMNS,
        read_attention_shape,
        read_switch,
    )
    from phaze_opt.estimator.single import estimate_attention
    from phaze_opt.workload.attention import AttentionShape

    chip = options.load_accelerator(kernel)

    def one(shape: AttentionShape, gradients: bool) -> SingleEstimate:
        return estimate_attention(
            shape,
            chip,
            options.cores,
            options.call_overhead_s,
            backward=gradients,
            sustained=sustained,
            precision=precision,
        )

    def one_row(row: CsvRow) -> SingleEstimate:
        shape = read_attention_shape(row, causal=causal, window=window, value_dim=head_dim_v)
        return one(shape, read_switch(row, "backward", backward))

    if options.csv_file is not None:
        _run_csv(options.csv_file, ATTENTION_COLUMNS, one_row)
        return
    if sequence is None or heads is None:
        raise InputError("Give --sequence and --heads, or --csv FILE.")
    groups = heads if kv_heads is None else kv_heads
    sizes = (batch, sequence, sequence, heads, groups, head_dim)
    _print(one(AttentionShape(*sizes, causal, window, head_dim_v), backward))


@app.command("cast")
@takes(EstimateOptions)
def cast_to(
    options: EstimateOptions,
    precision: Annotated[PrecisionName, typer.Option(help="To what, from bf16.")],
    shape: Annotated[str | None, typer.Option(help="ROWSxCOLUMNS, for example 8192x4096.")] = None,
) -> None:
    """Estimate a cast to fewer bits, its scales known, or every row of a CSV with rows,columns.

    Example: phaze-opt estimate cast --accelerator h100 --precision fp8 --shape 8192x16384
    """
    from phaze_opt.estimator.single import estimate_cast

    chip = options.load_accelerator()

    def one(rows: int, columns: int) -> SingleEstimate:
        return estimate_cast(rows, columns, precision, chip, options.cores, options.call_overhead_s)

    if options.csv_file is not None:
        _run_csv(
            options.csv_file,
            ("rows", "columns"),
            lambda row: one(whole_cell(row, "rows"), whole_cell(row, "columns")),
        )
        return
    if shape is None:
        raise InputError("Give --shape, or --csv FILE.")
    _print(one(*_shape(shape)))


_EXCHANGE_COLUMNS = ("devices", "nodes", "tokens", "hidden", "topk", "experts")


@app.command()
def experts(
    accelerator: Annotated[str, typer.Option(help="Preset name or TOML file.")],
    changes: ChangesOption = None,
    tokens: Annotated[int | None, typer.Option(help="Of the device.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Elements of a token.")] = None,
    ffn: Annotated[int | None, typer.Option(help="Inner width of an expert.")] = None,
    topk: Annotated[int | None, typer.Option(help="Experts of a token.")] = None,
    count: Annotated[
        int | None, typer.Option("--experts", help="Routed experts, all on the device.")
    ] = None,
    precision: Annotated[
        PrecisionName, typer.Option(help="In what they multiply; loss of accuracy is not modelled.")
    ] = "bf16",
    row_bytes: Annotated[
        float | None,
        typer.Option(
            help="Moved around the products per row and element; as measured on the chip, or 8.",
            show_default=False,
        ),
    ] = None,
    call_overhead_us: OverheadOption = 0.0,
    csv_file: CsvOption = None,
    as_json: JsonLinesOption = True,
) -> None:
    """Estimate the routed feed-forward of one device, gated, forward and evenly routed.

    The columns of a CSV are tokens,hidden,ffn,topk,experts[,precision]. The router is not part of
    it.

    Example: phaze-opt estimate experts --accelerator h100 --tokens 8192 --hidden 2048 --ffn 768
    --topk 8 --experts 128
    """
    from phaze_opt.calibration.expert_layers import (
        ExpertLayer,
        estimate_expert_layer,
        row_bytes_of,
    )
    from phaze_opt.calibration.measured_files import EXPERT_COLUMNS, read_expert_layer
    from phaze_opt.hardware.presets import configure_accelerator

    preset = configure_accelerator(accelerator, read_assignments(changes))
    around = row_bytes_of(accelerator) if row_bytes is None else row_bytes

    def one(layer: ExpertLayer) -> object:
        return estimate_expert_layer(layer, preset.accelerator, around, call_overhead_us * 1e-6)

    if csv_file is not None:
        _run_csv(
            csv_file,
            EXPERT_COLUMNS,
            lambda row: one(read_expert_layer(row, precision)),
        )
        return
    if tokens is None or hidden is None or ffn is None or topk is None or count is None:
        raise InputError("Give --tokens, --hidden, --ffn, --topk and --experts, or --csv FILE.")
    _print(one(ExpertLayer(tokens, hidden, ffn, topk, count, precision)))


@app.command()
def dispatch(
    cluster: Annotated[str, typer.Option(help="Network preset, or TOML or JSON file.")],
    dispatcher: Annotated[Dispatcher, typer.Option(help="What sends tokens.")] = "deepep",
    devices: Annotated[int | None, typer.Option(help="That share the experts out.")] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Of them; as the network has them by default.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Of each device.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Elements of a token.")] = None,
    topk: Annotated[int | None, typer.Option(help="Experts of a token.")] = None,
    count: Annotated[int | None, typer.Option("--experts", help="Routed experts.")] = None,
    sms: Annotated[
        int | None,
        typer.Option(help="Multiprocessors that the dispatcher takes.", show_default=False),
    ] = None,
    precision: Annotated[
        PrecisionName, typer.Option(help="Of what is dispatched; results come back in bf16.")
    ] = "bf16",
    csv_file: CsvOption = None,
    as_json: JsonLinesOption = True,
) -> None:
    """Estimate tokens on their way to their experts, and results back.

    The columns of a CSV are devices,nodes,tokens,hidden,topk,experts[,sms][,precision].

    Example: phaze-opt estimate dispatch --cluster dgx-h100 --devices 8 --tokens 4096 --hidden 7168
    --topk 8 --experts 256 --precision fp8
    """
    from phaze_opt.calibration.measured_files import read_precision
    from phaze_opt.network.cluster import in_domains
    from phaze_opt.network.estimate import RoutedTokens, estimate_exchange
    from phaze_opt.network.presets import load_cluster

    def one(
        sizes: Sequence[int], in_nodes: int | None, taken: int | None, own: PrecisionName
    ) -> object:
        routed = RoutedTokens(*sizes)
        network = load_cluster(cluster, routed.devices)
        if in_nodes is not None:
            network = in_domains(network, in_nodes)
        return estimate_exchange(routed, network, dispatcher, precision=own, multiprocessors=taken)

    def one_row(row: CsvRow) -> object:
        group, in_nodes, *sizes = (whole_cell(row, name) for name in _EXCHANGE_COLUMNS)
        taken = whole_cell(row, "sms") if row.get("sms") else sms
        return one((group, *sizes), in_nodes, taken, read_precision(row, precision))

    if csv_file is not None:
        _run_csv(csv_file, _EXCHANGE_COLUMNS, one_row)
        return
    sizes = [devices, tokens, hidden, topk, count]
    if None in sizes:
        raise InputError("Give --devices, --tokens, --hidden, --topk and --experts, or --csv FILE.")
    _print(one(cast("list[int]", sizes), nodes, sms, precision))


@dataclass(frozen=True)
class CollectiveOptions:
    """The options of a collective, but for its network."""

    kind: Annotated[CollectiveName | None, typer.Option(help="What the devices do.")] = None
    devices: Annotated[
        int | None, typer.Option("--devices", "--group", help="Devices that take part.")
    ] = None
    size_bytes: Annotated[
        float | None, typer.Option("--bytes", "--size-bytes", help="Of the whole tensor.")
    ] = None
    stride: Annotated[int, typer.Option(min=1, help="Distance of their ranks.")] = 1
    call_overhead_us: OverheadOption = 0.0
    csv_file: CsvOption = None

    def estimate(self, cluster: str) -> list[CollectiveEstimate]:
        """Estimate the collective, or every row of the file."""
        if self.csv_file is not None:
            return read_rows(
                self.csv_file,
                ("kind", "devices", "bytes"),
                lambda row: self._one(
                    cluster,
                    row["kind"] or "",
                    whole_cell(row, "devices"),
                    number_cell(row, "bytes"),
                ),
            )
        if self.kind is None or self.devices is None or self.size_bytes is None:
            raise InputError("Give --kind, --devices and --bytes, or --csv FILE.")
        return [self._one(cluster, self.kind, self.devices, self.size_bytes)]

    def _one(self, cluster: str, kind: str, devices: int, size_bytes: float) -> CollectiveEstimate:
        """Estimate one collective."""
        from phaze_opt.network.estimate import estimate_collective
        from phaze_opt.network.presets import load_cluster

        # A torus is cut to the slice that a job of this extent gets.
        network = load_cluster(cluster, devices * self.stride)
        name = cast("CollectiveName", kind)
        overhead_s = self.call_overhead_us * 1e-6
        return estimate_collective(name, size_bytes, devices, network, overhead_s, self.stride)


@app.command()
@takes(CollectiveOptions)
def collective(
    options: CollectiveOptions,
    cluster: Annotated[str, typer.Option(help="Preset name or TOML file.")],
    as_json: JsonLinesOption = True,
) -> None:
    """Estimate a collective, or every row of a CSV with columns kind,devices,bytes.

    The bytes are those of the whole tensor: what each device holds after an all-gather, before a
    reduce-scatter, before and after an all-reduce, and sends in total in an all-to-all. "levels"
    has what each device sends over every level of the network, innermost first.

    Example: phaze-opt estimate collective --cluster dgx-h100 --kind all_reduce --devices 8
    --bytes 1e9
    """
    for estimated in options.estimate(cluster):
        _print(estimated)


def _print(estimate: Any) -> None:
    """Print one estimate as a line of JSON."""
    print(json.dumps(asdict(estimate), allow_nan=False))


def _run_csv(
    path: Path, columns: tuple[str, ...], estimate_row: Callable[[CsvRow], object]
) -> None:
    """Print the estimate of every row; nothing is printed unless all rows are valid."""
    for line in read_rows(path, columns, estimate_row):
        _print(line)


def _shape(text: str) -> tuple[int, int]:
    """Read rows and columns."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--shape is {text!r}, but it must be ROWSxCOLUMNS, such as 4096x1024.")
    return int(parts[0]), int(parts[1])
