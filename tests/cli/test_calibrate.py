"""``phaze-opt calibrate``."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze_opt.estimator.single import estimate_attention, estimate_gemm, estimate_vector
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.estimate import estimate_collective
from phaze_opt.network.presets import load_cluster
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm
from tests.cli.conftest import Phaze

CHIP = load_accelerator("a100-80")
SIZES = [(m, n, k) for m in (4096, 8192) for n in (2048, 5120) for k in (2048, 8192)]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return tables that an A100 would be measured at, with a slower HBM and faster arrays."""
    gemm = ["m,n,k,latency_s"]
    gemm += [f"{m},{n},{k},{estimate_gemm(Gemm(m, n, k), CHIP).latency_s!r}" for m, n, k in SIZES]
    vector = ["op,rows,columns,latency_s"]
    for rows in (8192, 16384):
        slower_s = estimate_vector("add", rows, 8192, CHIP).latency_s * 0.89 / 0.8
        vector.append(f"add,{rows},8192,{slower_s!r}")
    attention = ["batch,sequence,heads,kv_heads,head_dim,causal,latency_s"]
    for batch, sequence in ((1, 2048), (2, 4096), (1, 8192), (4, 8192), (8, 1024)):
        shape = AttentionShape(batch, sequence, sequence, 32, 8, 128, causal=True)
        time_s = estimate_attention(shape, CHIP).latency_s
        attention.append(f"{batch},{sequence},32,8,128,1,{time_s!r}")
    cluster = load_cluster("dgx-a100", 8)
    collectives = ["kind,devices,bytes,latency_s"]
    for kind in ("all_reduce", "all_gather"):
        for devices in (2, 4, 8):
            for size in (1e5, 1e6, 1e7, 1e8):
                time_s = estimate_collective(kind, size, devices, cluster).latency_s
                collectives.append(f"{kind},{devices},{size:g},{time_s!r}")
    tables = {"gemm": gemm, "vector": vector, "attention": attention, "collectives": collectives}
    for name, lines in tables.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return {name: str(tmp_path / f"{name}.csv") for name in tables}


def test_a_calibrated_chip_is_a_file_that_other_commands_read(
    phaze: Phaze, files: dict[str, str], tmp_path: Path
) -> None:
    """Its constants, its sources and its base are there, and nothing else is in the folder."""
    arguments = ("a100-80", "--gemm", files["gemm"], "--vector", files["vector"])
    ran = phaze("calibrate", *arguments, "--output", "mine.toml", "--json")
    assert ran.code == 0
    assert [table["table"] for table in ran.json["tables"]] == ["vector", "gemm"]
    assert ran.json["written"] == ["mine.toml"]
    assert not list(tmp_path.glob("*.part"))
    constants = {constant["name"]: constant for constant in ran.json["constants"]}
    assert constants["hbm_efficiency"]["value"] == pytest.approx(0.8, rel=0.01)
    assert constants["hbm_efficiency"]["origin"] == "fitted"
    assert constants["array_efficiency"]["value"] == pytest.approx(0.927, rel=0.01)
    assert constants["glb_bytes_per_cycle"]["origin"] == "kept"
    chip = load_accelerator(str(tmp_path / "mine.toml"))
    assert chip.calibration.hbm_efficiency == constants["hbm_efficiency"]["value"]
    assert chip.hbm_bytes == CHIP.hbm_bytes
    shown = phaze("accelerator", "show", "mine.toml", "--json").json
    origin = shown["provenance"]["calibration.hbm_efficiency"]
    assert "2 vector rows of vector.csv" in origin["source"]
    assert shown["provenance"]["num_tc"]["confidence"] == "high"
    again = phaze("calibrate", "mine.toml", *arguments[1:], "--json").json["accelerator"]
    assert again["calibration"]["hbm_efficiency"] == pytest.approx(0.8, rel=0.01)


def test_residuals_and_origins_are_shown(phaze: Phaze, files: dict[str, str]) -> None:
    """A person sees how well each table is met and what it determines; nothing is written."""
    ran = phaze("calibrate", "a100-80", "--gemm", files["gemm"])
    assert ran.code == 0
    for word in ("Residuals", "bias", "worst", "array_efficiency", "fitted", "kept", "B/cycle"):
        assert word in ran.out


def test_attention_gives_its_overlap(phaze: Phaze, files: dict[str, str], tmp_path: Path) -> None:
    """The constants of the table are shown, and only that of the chip is written."""
    ran = phaze("calibrate", "a100-80", "--attention", files["attention"], "--output", "mine.toml")
    assert ran.code == 0
    assert "earlier_traffic" in ran.out
    assert "earlier_traffic" not in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize("stated", [(), ("--cluster", "dgx-a100")])
def test_collectives_give_a_network(
    phaze: Phaze, files: dict[str, str], stated: tuple[str, ...]
) -> None:
    """It stands beside the chip, whether or not somebody states the bandwidth of its links."""
    arguments = ("--collectives", files["collectives"], *stated, "--output", "mine.toml")
    ran = phaze("calibrate", "a100-80", *arguments, "--json")
    assert ran.code == 0
    assert ran.json["written"] == ["mine.toml", "mine.cluster.toml"]
    level = load_cluster("mine.cluster.toml", 8).levels[0]
    assert level.sustained_bytes_per_s == pytest.approx(0.82 * 300e9, rel=0.02)


@pytest.mark.parametrize(
    ("table", "text", "code", "sentence"),
    [
        ("gemm", "m,n,k,latency_s\n8192,8192,8192,4e-3\n", 2, "1 measured products"),  # too few
        ("gemm", "m,n,k,latency_s\n", 2, "has no rows"),  # none
        ("gemm", "m,n,k\n1,2,3\n", 2, "no column 'latency_s'"),  # no time
        ("gemm", "m,n,latency_s\n1,2,3\n", 2, "no column 'k'"),  # no size
        ("gemm", "m,n,k,latency_s\n1,2,0,1\n", 2, "k is 0"),  # impossible size
        ("gemm", "m,n,k,latency_s\n1,2,3,1\n1,2,x,1\n", 2, "Line 3 of"),  # not a number
        ("gemm", "m,n,k,latency_s\n1,2,3,0\n", 2, "latency_s is 0.0"),  # no time
        ("gemm", "m,n,k,latency_s\n1,2,3,nan\n", 2, "latency_s is nan"),  # not a number
        ("vector", "op,rows,columns,latency_s\ngleu,2,2,1\n", 2, "Did you mean 'gelu'"),
        ("collectives", "kind,devices,bytes,latency_s\nall_reduce,1,2,1\n", 2, "devices is 1"),
        (
            "attention",
            "batch,sequence,heads,kv_heads,head_dim,causal,latency_s\n1,64,4,3,64,1,1\n",
            2,
            "must divide",
        ),
        ("gemm", f"m,n,k,latency_s\n1,2,3,{131_073 * '3'}\n", 2, "at most 131,072 letters"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_tables_are_refused_and_nothing_is_written(
    phaze: Phaze, tmp_path: Path, table: str, text: str, code: int, sentence: str
) -> None:
    """With the line and what is allowed; a file that was there stays as it was."""
    (tmp_path / "bad.csv").write_text(text)
    (tmp_path / "mine.toml").write_text("before")
    ran = phaze("calibrate", "a100-80", f"--{table}", "bad.csv", "--output", "mine.toml")
    assert ran.code == code
    assert sentence in ran.sentence
    assert (tmp_path / "mine.toml").read_text() == "before"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("a100-80",), 2, "Give at least one of"),  # nothing measured
        (("a100-81", "--gemm", "a.csv"), 2, "Did you mean 'a100-80'"),  # unknown chip
        (("none.toml", "--gemm", "a.csv"), 3, "no accelerator file"),  # no such file
        (("a100-80", "--gemm", "a.csv"), 3, "no CSV file"),  # no such table
        (("a100-80", "--gemm", "a.csv", "--output", "a.json"), 2, "must end in .toml"),
        (("a100-80", "--gemm", "a.csv", "--cluster", "dgx-a100"), 2, "give --collectives"),
    ],
)
def test_bad_options_are_refused(
    phaze: Phaze, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    """One sentence each."""
    ran = phaze("calibrate", *arguments)
    assert ran.code == code
    assert sentence in ran.sentence
