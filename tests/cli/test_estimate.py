"""``phaze-opt estimate``, ``validate`` and ``accelerator compare``."""

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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("m,n\n1,2\n", "no column 'k'"),  # a column is missing
        ("m,n,k\n1,2,3\n4,5,x\n", "Line 3 of"),  # a broken number
        ("m,n,k\n1,2,0\n", "k is 0"),  # an impossible size
    ],
)
def test_a_broken_file_gives_one_sentence_and_no_line(
    phaze: Phaze, tmp_path: Path, text: str, sentence: str
) -> None:
    """Nothing is printed unless every row is valid."""
    path = tmp_path / "products.csv"
    path.write_text(text)
    ran = phaze("estimate", "gemm", "--accelerator", "tpuv4-phaze", "--csv", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gemm", "--m", "1", "--n", "1"), "Give --m, --n and --k"),
        (("gemm", "--m", "1", "--n", "1", "--k", "-1"), "k is -1"),
        (("gemm", "--m", "1", "--n", "1", "--k", "1", "--cores", "9"), "1 to 8 tensor cores"),
        (("vector", "--op", "softmaxx", "--shape", "2x2"), "Did you mean 'softmax'"),
        (("vector", "--op", "softmax", "--shape", "2by2"), "ROWSxCOLUMNS"),
    ],
)
def test_nonsense_is_refused(phaze: Phaze, arguments: tuple[str, ...], sentence: str) -> None:
    """A usage error is one sentence and exit code 2."""
    ran = phaze("estimate", *arguments, "--accelerator", "tpuv4-phaze")
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


def test_measured_rows_are_shown(phaze: Phaze) -> None:
    """The summary and, on request, every row are printed."""
    tables = phaze("validate", "operators", "--json").json
    assert {("gemm", "a100-80"), ("softmax", "mi210")} <= {
        (table["table"], table["accelerator"]) for table in tables
    }
    assert "gemm 8192×64×64" in phaze("validate", "operators", "--rows").out
    assert "gemm 8192×64×64" not in phaze("validate", "operators").out


def test_accelerators_are_compared(phaze: Phaze) -> None:
    """Only what differs is shown, with its ratio."""
    rows = phaze("accelerator", "compare", "tpuv4-phaze", "tpuv4-lanes", "--json").json
    by_field = {row["field"]: row for row in rows}
    assert by_field["pe_vc"]["ratio"] == 8.0
    assert "num_tc" not in by_field
    assert "none" in phaze("accelerator", "compare", "tpuv4-phaze", "tpuv4-phaze").out
