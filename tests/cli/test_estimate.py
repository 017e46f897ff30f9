"""``phaze-opt estimate`` and ``accelerator compare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Phaze

KEYS = {"latency_s", "bound", "utilisation", "energy_j"}


def test_one_product_is_estimated(phaze: Phaze) -> None:
    """The promised keys come out as one line of JSON."""
    ran = phaze(
        "estimate", "gemm", "--accelerator", "a100-80", "--m", "64", "--n", "64", "--k", "8"
    )
    assert ran.code == 0
    assert ran.json.keys() >= KEYS
    assert len(ran.out.splitlines()) == 1


def test_the_call_overhead_is_in_microseconds(phaze: Phaze) -> None:
    """``--call-overhead-us 25`` adds 25 µs."""
    shape = ("--accelerator", "a100-80", "--op", "softmax", "--shape", "4096x1024")
    bare = phaze("estimate", "vector", *shape).json["latency_s"]
    called = phaze("estimate", "vector", *shape, "--call-overhead-us", "25").json["latency_s"]
    assert called == pytest.approx(bare + 25e-6)


def test_a_file_gives_lines_in_its_order(phaze: Phaze, tmp_path: Path) -> None:
    """Every row of a CSV gives its line, the same as alone."""
    path = tmp_path / "products.csv"
    path.write_text("m,n,k,batch\n512,512,64,16\n8,8,8,\n")
    ran = phaze("estimate", "gemm", "--accelerator", "tpuv4-phaze", "--csv", str(path))
    first, second = (json.loads(line) for line in ran.out.splitlines())
    alone = phaze(
        "estimate", "gemm", "--accelerator", "tpuv4-phaze",
        "--m", "512", "--n", "512", "--k", "64", "--batch", "16",
    )  # fmt: skip
    assert first == alone.json
    assert second["latency_s"] < first["latency_s"]


def test_fused_attention_is_estimated(phaze: Phaze, tmp_path: Path) -> None:
    """Options and a CSV give the same line; an empty ``causal`` is what the option says."""
    path = tmp_path / "attention.csv"
    path.write_text(
        "batch,sequence,heads,kv_heads,head_dim,causal\n2,2048,16,4,128,\n2,2048,16,4,128,0\n"
    )
    on_chip = ("estimate", "attention", "--accelerator", "h100", "--call-overhead-us", "20")
    shape = ("--batch", "2", "--sequence", "2048", "--heads", "16", "--kv-heads", "4")
    ran = phaze(*on_chip, "--csv", str(path))
    causal, full = (json.loads(line) for line in ran.out.splitlines())
    assert causal == phaze(*on_chip, *shape).json
    assert causal.keys() >= KEYS
    assert full == phaze(*on_chip, *shape, "--no-causal").json
    backward = phaze(*on_chip, *shape, "--backward").json
    assert causal["latency_s"] < full["latency_s"]
    assert causal["latency_s"] < backward["latency_s"]


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        ("attention", "batch,sequence\n1,2\n", "no column 'heads'"),  # a column is missing
        (
            "attention",
            "batch,sequence,heads,kv_heads,head_dim,causal\n1,8,2,1,8,yes\n",
            "causal is 'yes', but it must be 0 or 1",
        ),
        ("attention", "batch,sequence,heads,kv_heads,head_dim\n1,8,2,1,0\n", "head_dim is 0"),
        ("gemm", "m,n\n1,2\n", "no column 'k'"),  # a column is missing
        ("gemm", "m,n,k\n1,2,3\n4,5,x\n", "Line 3 of"),  # a broken number
        ("gemm", "m,n,k\n1,2,nan\n", "k is 'nan'"),  # not a number
        ("gemm", "m,n,k\n1,2,2.5\n", "k is '2.5', but it must be a whole number"),
        ("gemm", "m,n,k\n1,2,0\n", "k is 0"),  # an impossible size
        ("gemm", "m,n,k\n1,-2,3\n", "n is -2"),  # negative
        ("gemm", "m,n,k,batch\n1,2,3,0\n", "batch is 0"),  # nothing to do
        ("vector", "op,rows\ngelu,2\n", "no column 'columns'"),  # a column is missing
        ("vector", "op,rows,columns\ngelu,2,0\n", "columns is 0"),  # nothing to do
        ("vector", "op,rows,columns\ngelu,nan,2\n", "rows is 'nan'"),  # not a number
        ("vector", "op,rows,columns\ngelu,2,2\ngleu,2,2\n", "Did you mean 'gelu'"),
        ("gemm", f"m,n,k\n1,2,3\n1,2,{131_073 * '3'}\n", "at most 131,072 letters"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_broken_file_gives_one_sentence_and_no_line(
    phaze: Phaze, tmp_path: Path, command: str, text: str, sentence: str
) -> None:
    """Nothing is printed unless every row is valid."""
    path = tmp_path / "operators.csv"
    path.write_text(text)
    ran = phaze("estimate", command, "--accelerator", "tpuv4-phaze", "--csv", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


GEMM = ("gemm", "--m", "512", "--n", "512", "--k", "512")
ATTENTION = ("attention", "--sequence", "512", "--heads", "2")
VECTOR = ("vector", "--op", "softmax", "--shape", "512x512")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("attention", "--sequence", "512"), "Give --sequence and --heads"),
        (("attention", "--sequence", "0", "--heads", "2"), "queries is 0"),
        ((*ATTENTION, "--kv-heads", "3"), "kv_heads is 3, but it must divide the 2 heads"),
        ((*ATTENTION, "--cores", "9"), "1 to 8 tensor cores"),
        ((*ATTENTION, "--call-overhead-us", "nan"), "must be finite"),
        (("gemm", "--m", "1", "--n", "1"), "Give --m, --n and --k"),
        (("gemm", "--m", "0", "--n", "1", "--k", "1"), "m is 0"),
        (("gemm", "--m", "1", "--n", "1", "--k", "-1"), "k is -1"),
        (("gemm", "--m", "nan", "--n", "1", "--k", "1"), "--m"),
        (("gemm", "--m", "1", "--n", "1.5", "--k", "1"), "--n"),
        (("gemm", "--m", "1", "--n", "1", "--k", "9" * 20), "it must be a whole number between"),
        ((*GEMM, "--batch", "0"), "batch is 0"),
        ((*GEMM, "--batch", "-2"), "batch is -2"),
        ((*GEMM, "--cores", "0"), "1 to 8 tensor cores"),
        ((*GEMM, "--cores", "9"), "1 to 8 tensor cores"),
        ((*GEMM, "--call-overhead-us", "-1"), "must not be negative"),
        ((*GEMM, "--call-overhead-us", "nan"), "must be finite"),
        (("vector", "--op", "softmaxx", "--shape", "2x2"), "Did you mean 'softmax'"),
        (("vector", "--op", "softmax", "--shape", "2by2"), "ROWSxCOLUMNS"),
        (("vector", "--op", "softmax", "--shape", "nanx2"), "ROWSxCOLUMNS"),
        (("vector", "--op", "softmax", "--shape", "2x-2"), "ROWSxCOLUMNS"),
        (("vector", "--op", "softmax", "--shape", "0x2"), "rows is 0"),
        ((*VECTOR, "--cores", "3"), "1 to 2 vector cores"),
        ((*VECTOR, "--call-overhead-us", "inf"), "must be finite"),
    ],
)
def test_nonsense_is_refused(phaze: Phaze, arguments: tuple[str, ...], sentence: str) -> None:
    """A usage error is one sentence and exit code 2."""
    ran = phaze("estimate", *arguments, "--accelerator", "tpuv4-phaze")
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


@pytest.mark.parametrize("operator", [GEMM, VECTOR, ATTENTION])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("num_tc=0", "num_tc is 0"),
        ("pe_x=-32", "pe_x is -32"),
        ("pe_y=nan", "pe_y is 'nan', but it must give a whole number"),
        ("clock_hz=nan", "clock_hz is nan"),
        ("hbm_bytes_per_s=inf", "hbm_bytes_per_s is inf"),
        ("glb_bytes_per_cycle=0", "glb_bytes_per_cycle is 0"),
        ("glb_bytes=512", "glb_bytes is 512, smaller than the private buffer"),  # holds no block
        ("pe_x=100000", "larger than a chip"),  # one array
        ("num_tc=100000000", "larger than the largest chip"),  # all arrays together
        ("l2_vc_bytes=8", "l2_vc_bytes is 8, too small"),  # holds no value per lane
    ],
)
def test_chips_that_cannot_exist_are_refused(
    phaze: Phaze, operator: tuple[str, ...], change: str, sentence: str
) -> None:
    """An impossible chip is a usage error with the reason, whatever it should run."""
    ran = phaze("estimate", *operator, "--accelerator", "a100-80", "--set", change)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


def test_a_private_buffer_that_holds_no_tile_is_refused(phaze: Phaze) -> None:
    """The product needs room for one tile with its streams."""
    ran = phaze("estimate", *GEMM, "--accelerator", "tpuv4-phaze", "--set", "l2_tc_bytes=64")
    assert (ran.code, ran.out) == (2, "")
    assert "l2_tc_bytes is 64, too small for one tile of 128 × 128" in ran.sentence


def test_one_collective_is_estimated(phaze: Phaze) -> None:
    """The promised keys come out as one line of JSON; the overhead is in microseconds."""
    asked = ("--cluster", "dgx-h100", "--kind", "all_gather", "--devices", "8", "--bytes", "1e9")
    ran = phaze("estimate", "collective", *asked)
    assert ran.code == 0
    assert ran.json.keys() == {"latency_s", "algorithm", "bus_bandwidth_bytes_per_s", "levels"}
    assert len(ran.out.splitlines()) == 1
    assert phaze("estimate", "collective", *asked, "--json").out == ran.out
    answer = ran.json
    assert answer["bus_bandwidth_bytes_per_s"] == pytest.approx(7 / 8 * 1e9 / answer["latency_s"])
    called = phaze("estimate", "collective", *asked, "--call-overhead-us", "25").json
    assert called["latency_s"] == pytest.approx(answer["latency_s"] + 25e-6)


def test_a_file_of_collectives_gives_lines_in_its_order(phaze: Phaze, tmp_path: Path) -> None:
    """Every row gives its line, the same as alone; a torus has the slice of each row."""
    path = tmp_path / "collectives.csv"
    path.write_text("kind,devices,bytes\nall_reduce,64,1e9\nall_to_all,8,65536\n")
    ran = phaze("estimate", "collective", "--cluster", "tpuv4-torus", "--csv", str(path))
    first, second = (json.loads(line) for line in ran.out.splitlines())
    alone = phaze(
        "estimate", "collective", "--cluster", "tpuv4-torus",
        "--kind", "all_reduce", "--devices", "64", "--bytes", "1e9",
    )  # fmt: skip
    assert first == alone.json
    assert second["latency_s"] < first["latency_s"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("all_reduce,8", "Line 3 of"),  # a column is missing
        ("broadcast,8,1e6", "'broadcast' is unknown"),
        (",8,1e6", "is unknown"),
        ("all_reduce,eight,1e6", "devices is 'eight', but it must be a whole number"),
        ("all_reduce,0,1e6", "devices is 0"),
        ("all_reduce,8,much", "bytes is 'much', but it must be a number"),
        ("all_reduce,8,-1", "size_bytes is -1.0"),
        ("all_reduce,8,inf", "size_bytes is inf"),
        ("all_reduce,5000,1", "joins at most 4096"),
    ],
)
def test_a_broken_file_of_collectives_gives_one_sentence(
    phaze: Phaze, tmp_path: Path, line: str, sentence: str
) -> None:
    """Nothing is printed unless every row is valid."""
    path = tmp_path / "collectives.csv"
    path.write_text(f"kind,devices,bytes\nall_reduce,8,1e9\n{line}\n")
    ran = phaze("estimate", "collective", "--cluster", "tpuv4-torus", "--csv", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--kind", "all_reduce", "--devices", "8"), "Give --kind, --devices and --bytes"),
        (("--kind", "broadcast", "--devices", "8", "--bytes", "1"), "--kind"),
        (("--kind", "all_reduce", "--devices", "0", "--bytes", "1"), "devices is 0"),
        (("--kind", "all_reduce", "--devices", "8", "--bytes", "nan"), "size_bytes is nan"),
        (
            ("--kind", "all_reduce", "--devices", "8", "--bytes", "1", "--call-overhead-us", "-1"),
            "must not be negative",
        ),
    ],
)
def test_impossible_collectives_are_refused(
    phaze: Phaze, arguments: tuple[str, ...], sentence: str
) -> None:
    """A usage error is one sentence and exit code 2."""
    ran = phaze("estimate", "collective", "--cluster", "dgx-h100", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


def test_accelerators_are_compared(phaze: Phaze) -> None:
    """Only what differs is shown, with its ratio."""
    rows = phaze("accelerator", "compare", "tpuv4-phaze", "tpuv4-lanes", "--json").json
    by_field = {row["field"]: row for row in rows}
    assert by_field["pe_vc"]["ratio"] == 8.0
    assert "num_tc" not in by_field
    assert "none" in phaze("accelerator", "compare", "tpuv4-phaze", "tpuv4-phaze").out


@pytest.mark.parametrize("size", ["1e30", "inf", "-1", str(2**50 + 1)])
def test_a_tensor_of_a_collective_has_a_largest_size(phaze: Phaze, size: str) -> None:
    """No network ever sends more."""
    asked = ("--cluster", "dgx-h100", "--kind", "all_reduce", "--devices", "8", "--bytes")
    ran = phaze("estimate", "collective", *asked, size)
    assert (ran.code, ran.out) == (2, "") and "size_bytes is" in ran.sentence
    assert phaze("estimate", "collective", *asked, str(2**50)).code == 0


def test_layouts_and_long_runs_of_products(phaze: Phaze, tmp_path: Path) -> None:
    """A column or an option says which product it is; long runs of a B200 are slower."""
    rows = "m,n,k,layout\n8192,8192,4096,tn\n8192,8192,4096,NN\n8192,8192,4096,nt\n"
    (tmp_path / "rows.csv").write_text(rows)
    asked = ("estimate", "gemm", "--accelerator", "b200", "--csv", "rows.csv")
    burst, sustained = (
        [row["latency_s"] for row in map(json.loads, phaze(*asked, *options).out.splitlines())]
        for options in ((), ("--sustained",))
    )
    assert burst[0] == burst[1] < burst[2]
    assert all(long > 1.2 * short for long, short in zip(sustained, burst, strict=True))
    ran = phaze("estimate", "gemm", "--accelerator", "b200", "--m", "8", "--layout", "tt")
    assert ran.code == 2


def test_kernels_windows_and_widths_of_attention(phaze: Phaze, tmp_path: Path) -> None:
    """Columns state a row's own sizes and direction; a kernel that nobody measured is refused."""
    rows = (
        "batch,sequence,heads,kv_heads,head_dim,head_dim_v,window,backward\n"
        "1,8192,32,8,128,,,\n1,8192,32,8,128,,1024,\n1,8192,32,32,192,128,,\n1,8192,32,8,128,,,1\n"
    )
    (tmp_path / "rows.csv").write_text(rows)
    asked = ("estimate", "attention", "--accelerator", "h200", "--csv", "rows.csv")
    plain, window, wide, backward = (
        row["latency_s"] for row in map(json.loads, phaze(*asked).out.splitlines())
    )
    assert window < 0.4 * plain < 0.5 * wide
    assert backward > 2.5 * plain
    slower = json.loads(phaze(*asked, "--kernel", "serving").out.splitlines()[0])["latency_s"]
    assert slower != plain
    refused = phaze(*asked, "--kernel", "fa3")
    assert refused.code == 2
    assert "has no constants on h200; known are: cudnn" in refused.sentence


EXPERTS = ("--tokens", "4096", "--hidden", "2048", "--ffn", "768", "--topk", "8")


def test_a_layer_of_experts_is_estimated(phaze: Phaze, tmp_path: Path) -> None:
    """A row alone and in a file are the same; fewer bits are faster, traffic takes longer."""
    command = ("estimate", "experts", "--accelerator", "h100")
    alone = phaze(*command, *EXPERTS, "--experts", "128").json
    assert alone["rows"] == 4096 * 8 and 0.0 < alone["utilisation"] < 1.0
    assert 0.0 < alone["around_s"] < alone["latency_s"]
    path = tmp_path / "experts.csv"
    path.write_text("tokens,hidden,ffn,topk,experts,precision\n4096,2048,768,8,128,\n"
                    "4096,2048,768,8,128,fp8\n")  # fmt: skip
    lines = phaze(*command, "--csv", str(path)).out.splitlines()
    assert json.loads(lines[0]) == alone
    assert json.loads(lines[1])["latency_s"] < alone["latency_s"]
    more = phaze(*command, *EXPERTS, "--experts", "128", "--row-bytes", "30").json
    assert more["latency_s"] > alone["latency_s"]


def test_an_exchange_of_tokens_is_estimated(phaze: Phaze, tmp_path: Path) -> None:
    """One device sends nothing; nodes, multiprocessors and fewer bits matter."""
    path = tmp_path / "exchanges.csv"
    path.write_text(
        "devices,nodes,tokens,hidden,topk,experts,sms,precision\n"
        "1,1,4096,7168,8,256,,\n8,1,4096,7168,8,256,,\n8,1,4096,7168,8,256,,fp8\n"
        "8,1,4096,7168,8,256,8,\n16,2,4096,7168,8,256,,\n16,4,4096,7168,8,256,,\n"
    )
    command = ("estimate", "dispatch", "--cluster", "dgx-h100", "--dispatcher")
    ideal = [
        json.loads(line)
        for line in phaze(*command, "ideal", "--csv", str(path)).out.split("\n")
        if line
    ]
    assert ideal[0]["dispatch_s"] == ideal[0]["combine_s"] == 0.0
    lines = phaze(*command, "deepep", "--csv", str(path)).out.splitlines()
    _, eight, narrow, few, two_nodes, four_nodes = map(json.loads, lines)
    assert narrow["dispatch_s"] < eight["dispatch_s"] < few["dispatch_s"]
    assert narrow["combine_s"] == eight["combine_s"]
    assert eight["dispatch_s"] < two_nodes["dispatch_s"] < four_nodes["dispatch_s"]
    alone = phaze(*command, "deepep", "--devices", "16", "--nodes", "4", "--tokens", "4096",
                  "--hidden", "7168", "--topk", "8", "--experts", "256")  # fmt: skip
    assert alone.json == four_nodes


def test_a_cast_is_estimated(phaze: Phaze, tmp_path: Path) -> None:
    """What is not cast is refused; a file gives the same as a shape."""
    command = ("estimate", "cast", "--accelerator", "h100", "--precision")
    alone = phaze(*command, "fp8", "--shape", "8192x8192")
    path = tmp_path / "casts.csv"
    path.write_text("rows,columns\n8192,8192\n")
    assert phaze(*command, "fp8", "--csv", str(path)).json == alone.json
    assert alone.json["hbm_bytes"] == pytest.approx(3 * 8192 * 8192)
    assert phaze(*command, "bf16", "--shape", "8x8").code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("experts", "--accelerator", "h100", *EXPERTS), "Give --tokens"),
        (("experts", "--accelerator", "h100", *EXPERTS, "--experts", "4"), "top_k is 8"),
        (("experts", "--accelerator", "a100-80", *EXPERTS, "--experts", "64", "--precision", "fp8"),
         "fp8_ratio"),
        (("dispatch", "--cluster", "dgx-h100", "--devices", "6", "--tokens", "8", "--hidden", "8",
          "--topk", "2", "--experts", "8"), "must divide the 8 experts"),
        (("dispatch", "--cluster", "dgx-h100", "--devices", "16", "--nodes", "1", "--tokens", "8",
          "--hidden", "8", "--topk", "2", "--experts", "16"), "does not join 16 devices"),
    ],
)  # fmt: skip
def test_impossible_experts_are_refused(
    phaze: Phaze, arguments: tuple[str, ...], sentence: str
) -> None:
    """One sentence says what is wrong."""
    ran = phaze("estimate", *arguments)
    assert (ran.code, ran.out) == (2, "") and sentence in ran.err
