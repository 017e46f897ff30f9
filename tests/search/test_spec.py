"""Study files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.search.frozen import check_names
from phaze_opt.search.space import PowerRange, Space
from phaze_opt.search.spec import AreaSpec, SearchSpec, StudySpec, check_study_name, read_spec

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"

MINIMAL = """
name = "small"
model = "bert-large"
cluster = "tpuv4-ici-flat"
devices = 8
global_batch = 64
"""


def written(folder: Path, text: str) -> Path:
    """Write a study file."""
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_the_space_of_the_paper(tmp_path: Path) -> None:
    """A file that names only the question searches the paper's space."""
    spec = read_spec(written(tmp_path, MINIMAL))
    assert spec.space.num_tc == PowerRange(1, 4096)
    assert spec.space.pe_vc == "pe_x"
    assert spec.baselines == ("tpuv4-phaze", "tpuv4-lanes")


def test_quickstart_is_valid() -> None:
    """The study of the first screen asks what it says."""
    spec = read_spec(QUICKSTART)
    resolved = check_names(spec)
    assert (spec.model, spec.devices, spec.global_batch) == ("bert-large", 1024, 4096)
    assert spec.search.trials == 60
    assert resolved.area_limit_mm2 == pytest.approx(278.82667631216, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        # A typo, on the outside and inside a table: the nearest key is named.
        ("devises = 9", "Did you mean 'devices'"),
        ("[space]\nnum_tcs = { min = 1, max = 2 }", "Did you mean 'num_tc'"),
        # A word that is none of the allowed ones: all of them are named.
        ("[search]\nsampler = 'tpr'", "Unknown sampler .*Allowed: climb, nsga2, random, tpe"),
        ("optimizer = 'sgdm'", "Unknown optimizer .*'sgd'"),
        ("[area]\nmodel = 'die'", "Unknown model .*Allowed: chip, phaze-22nm"),
        ("[space]\nrecompute = ['none', 'ful']", "Unknown recompute .*'full'"),
        ("[space]\npe_vc = 'pe_y'", "Unknown pe_vc .*Allowed: pe_x"),
        # Ranges that make no sense.
        ("[space]\nnum_tc = { min = 3, max = 8 }", "power of two"),
        ("[space]\nnum_tc = { min = 8, max = 4 }", "must not be above max"),
        ("[space]\nhbm_gib = []", "different choices"),
        ("[space]\nhbm_gib = [32, 32]", "different choices"),
        ("[space]\nmicrobatch = { min = 1, max = 128 }", "global batch of 64"),
        ("[area]\nmax_mm2 = -3.0", "must be positive"),
        ("[search]\ntrials = 0", "at least 1"),
        ("[search]\ntrials = 'many'", "Expected `int`"),
        ("sequence = [", "not valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: str, sentence: str) -> None:
    """Every mistake is refused in one sentence."""
    with pytest.raises(InputError, match=sentence) as caught:
        read_spec(written(tmp_path, f"{MINIMAL}\n{change}\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("devices = 8", "devices = 0", "devices is 0"),
        ("global_batch = 64", "global_batch = 4", "global batch of 4"),
        ('name = "small"', 'name = "../small"', "not allowed"),
        ('name = "small"\n', "", "name"),
    ],
)
def test_bad_numbers_are_named(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """Zero devices, a microbatch above the global batch, and bad names are refused."""
    with pytest.raises(InputError, match=sentence):
        read_spec(written(tmp_path, MINIMAL.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"bert-large"', '"bert-larg"', "Did you mean 'bert-large'"),
        ('"tpuv4-ici-flat"', '"tpuv4-ici"', "Did you mean 'tpuv4-ici-flat'"),
        ("devices = 8", 'devices = 8\nbaselines = ["tpuv4-phase"]', "Did you mean 'tpuv4-phaze'"),
        ("devices = 8", 'devices = 8\nbaselines = ["mi300x"]', "'mi300x' has no area"),
        ("devices = 8", "devices = 8\ntensor_parallel = [3]", "tensor_parallel holds 3"),
    ],
)
def test_unknown_names_are_found(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """Models, clusters and presets are looked up before anything is stored."""
    spec = read_spec(written(tmp_path, MINIMAL.replace(old, new)))
    with pytest.raises(InputError, match=sentence):
        check_names(spec)


def test_specs_in_python() -> None:
    """Pairs and lists are taken as ranges and choices, as a file's are; the ``repr`` is a call."""
    spec = StudySpec(
        "mine",
        "bert-large",
        "tpuv4-ici-flat",
        64,
        256,
        tensor_parallel=[1, 2],  # type: ignore[arg-type]
        space=Space(num_tc=(1, 64), pe_vc=PowerRange(2, 8), hbm_gib=[32, 80]),  # type: ignore[arg-type]
    )
    assert spec.space.num_tc == PowerRange(1, 64)
    assert (spec.tensor_parallel, spec.space.hbm_gib) == ((1, 2), (32, 80))
    assert eval(repr(spec)) == spec
    assert "\n" not in repr(spec) and "sequence_parallel" not in repr(spec)
    assert from_json(to_json(spec), StudySpec, "spec") == spec


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        (Space, {"num_tc": (3, 8)}, "num_tc of the space .*power of two"),
        (Space, {"num_tc": (1, 2, 4)}, "num_tc of the space .*length 2"),
        (Space, {"hbm_gib": 32}, "hbm_gib of the space .*Expected `array`"),
        (Space, {"recompute": ("ful",)}, "recompute of the space.*Did you mean 'full'"),
        (Space, {"pe_vc": "pe_y"}, "pe_vc of the space.*'pe_x'"),
        (SearchSpec, {"sampler": "tpr"}, "sampler of the search.*'tpe'"),
        (SearchSpec, {"trials": "many"}, "trials of the search .*Expected `int`"),
        (AreaSpec, {"max_mm2": "large"}, "max_mm2 of the area .*Expected `float"),
        (StudySpec, {"devices": "8"}, "devices of the study .*Expected `int`"),
        (StudySpec, {"space": Space}, "space of the study is not valid"),
    ],
)
def test_mistakes_in_python_are_named(kind: Any, change: dict[str, Any], sentence: str) -> None:
    """A value of the wrong type or outside its range is refused where the spec is made."""
    required: dict[str, Any] = {}
    if kind is StudySpec:
        required = {"name": "a", "model": "b", "cluster": "c", "devices": 8, "global_batch": 64}
    with pytest.raises(InputError, match=sentence) as caught:
        kind(**(required | change))
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is not found, rather than invalid."""
    with pytest.raises(NotFoundError, match="no study file"):
        read_spec(tmp_path / "none.toml")


@given(st.integers(0, 12), st.integers(0, 12))
def test_ranges_hold_their_powers(low: int, high: int) -> None:
    """A range holds every power of two from its minimum to its maximum."""
    if low <= high:
        axis = PowerRange(2**low, 2**high)
        assert axis.exponents == (low, high)
        assert axis.values == tuple(2**e for e in range(low, high + 1))


@pytest.mark.parametrize("name", ["", "-rf", "a/b", "a b", "a;b", "\x1b[31m", "<b>", "x" * 101])
def test_hostile_names_are_refused(name: str) -> None:
    """A name that a shell, a path, a terminal or a page would stumble over is refused."""
    with pytest.raises(InputError, match="not allowed"):
        check_study_name(name)
