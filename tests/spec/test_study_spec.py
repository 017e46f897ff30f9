"""Study files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.axes import PowerRange
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import (
    AreaSpec,
    SearchSpec,
    StudySpec,
    WorkloadSpec,
    check_study_name,
    read_spec,
)

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
    assert spec.space == Space.phaze()
    assert read_spec(written(tmp_path, MINIMAL + 'space = "phaze"')).space == spec.space
    assert spec.baselines == ("tpuv4-phaze", "tpuv4-lanes")


def test_quickstart_is_valid() -> None:
    """The study of the first screen asks what it says."""
    spec = read_spec(QUICKSTART)
    resolved = check_names(spec)
    assert (spec.model, spec.devices, spec.global_batch) == ("bert-large", 1024, 4096)
    assert (spec.optimizer, spec.area.model) == ("adam", "chip")
    assert spec.baselines[0] == "tpuv4-lanes"
    assert spec.space.solved["attention"].values == ("eager", "flash")
    assert resolved.base.hbm_bytes_per_s == 37.5e9 * resolved.base.hbm_bytes / 2**30
    assert spec.space.derived["hbm_gb_per_s"].text == "37.5 * hbm_gib"
    assert resolved.area_limit_mm2 == load_accelerator("tpuv4-lanes").area_under("chip")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        # A typo, on the outside and inside a table: the nearest key is named.
        ("devises = 9", "Did you mean 'devices'"),
        ("[space]\nnum_tcs = { min = 1, max = 2 }", "Did you mean 'num_tc'"),
        # A word that is none of the allowed ones: all of them are named.
        (
            "[search]\nsampler = 'tpr'",
            "Unknown sampler .*'tpe'.*Allowed: bound, brute-force, climb, cmaes",
        ),
        ("optimizer = 'sgdm'", "Unknown optimizer .*'sgd'"),
        ("[area]\nmodel = 'die'", "Unknown model .*Allowed: chip, phaze-22nm"),
        ("[space]\nrecompute = ['none', 'ful']", "Unknown recompute .*'full'"),
        ("[space]\npe_vc = 'pe_y'", "pe_vc of the space follows 'pe_y'"),
        ("[constraints]\npower = 3", "Unknown key"),
        ("[search]\nsampler_ = 3", "Did you mean 'sampler'"),
        ("[[workloads]]\nmodel = 'gpt2-xl'", "either a model or"),
        ("objectives = ['speed']", "Unknown objectives.*throughput"),
        ("objectives = []", "must list different objectives"),
        ("objectives = ['area', 'power']\n[search]\nsampler = 'climb'", "climb"),
        ("[search]\noptions = { sigma = 0.1 }", "no sampler; name the one"),
        (
            "[search]\nsampler = 'tpe'\noptions = { n_ei_candidate = 9 }",
            "Did you mean 'n_ei_candidates'",
        ),
        ("[search]\nsampler = 'cmaes'\noptions = { sigma = 2.0 }", "sigma is 2.0"),
        ("objectives = ['area', 'area']", "must list different objectives"),
        ("aggregate = 'mean'", "Unknown aggregate"),
        ("relative_to = 'h100'", "one of the baselines: tpuv4-phaze, tpuv4-lanes"),
        ("zero = 4", "zero is 4"),
        ("interleave = 0", "interleave is 0"),
        ("overlap = 'some'", "Unknown overlap"),
        ("attention = 'fast'", "Unknown attention"),
        ("attention = 'flash'\n[space]\nattention = ['eager', 'flash']", "give one of them"),
        ("tensor_parallel = [0]", "degrees of at least 1"),
        ("[constraints]\nmax_power_w = 0", "max_power_w is 0"),
        ("[constraints]\nmax_cost_usd = 1e6", "max_cost_usd needs the area of dies"),
        ('objectives = ["throughput_per_watt"]', "throughput_per_watt needs the area of dies"),
        ("[economics]\nmargn = 2", "margn"),
        ("[economics]\npue = 0.9", "pue is 0.9, but it must be at least 1"),
        ("[constraints]\nmin_memory_margin = 1.0", "must be in"),
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
        (
            "global_batch = 64",
            'global_batch = 64\n[space]\ncluster = ["tpuv4-ici-flat", "dgx"]',
            "Unknown cluster 'dgx'",
        ),
        (
            "global_batch = 64",
            "global_batch = 64\n[space]\n'network.3.latency_us' = [1, 2]",
            "network.3 of the space is no level",
        ),
        (
            "global_batch = 64",
            'global_batch = 64\n[space]\nbase = "mi300x"\nnum_tc = [304, 400]',
            "which has no area.*write max_mm2 or max_of",
        ),
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
        space=Space(num_tc=(1, 64), pe_vc=PowerRange(2, 8), hbm_gib=[32, 80]),
    )
    assert spec.space.axes["num_tc"] == PowerRange(1, 64)
    assert (spec.tensor_parallel, spec.space.values_of("hbm_gib")) == ((1, 2), (32, 80))
    assert eval(repr(spec)) == spec
    assert "\n" not in repr(spec) and "sequence_parallel" not in repr(spec)
    assert from_json(to_json(spec), StudySpec, "spec") == spec


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        (SearchSpec, {"sampler": "tpr"}, "sampler of the search.*'tpe'"),
        (SearchSpec, {"trials": "many"}, "trials of the search .*Expected `int`"),
        (AreaSpec, {"max_mm2": "large"}, "max_mm2 of the area .*Expected `float"),
        (StudySpec, {"devices": "8"}, "devices of the study .*Expected `int`"),
        (StudySpec, {"space": Space}, "space of the study is .*, but it must be a Space"),
        (WorkloadSpec, {"model": "b", "weight": -1.0}, "weight is -1.0"),
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


@pytest.mark.parametrize(
    ("fixed", "searched", "refused"),
    [
        (
            {"fp8_primary_weights": True, "optimizer": "adam"},
            {"precision": ["fp8", "mxfp8"]},
            {"precision": ["nvfp4"]},
        ),
        ({"dispatch_precision": "fp8"}, {"precision": ["bf16", "fp8"]}, {"precision": ["nvfp4"]}),
        ({"fp8_scaling": "delayed"}, {"precision": {"solve": ["fp8"]}}, {"precision": ["mxfp8"]}),
        ({"offload_optimizer": 1.0}, {"optimizer": ["sgd", "adam"]}, {"optimizer": ["sgd"]}),
    ],
)
def test_options_are_together_what_the_space_allows(
    fixed: dict[str, Any], searched: dict[str, Any], refused: dict[str, Any]
) -> None:
    """What goes with some searched value is a study; what goes with none is refused, naming it."""

    def study(axes: dict[str, Any]) -> StudySpec:
        space = Space("tpuv4-lanes", num_tc=[2, 8], fp8_ratio=2.0, fp4_ratio=4.0, **axes)
        return StudySpec("a", "gpt2-xl", "dgx-h100", 8, 64, space=space, **fixed)

    assert study(searched).space.axes.keys() >= searched.keys()
    ((name, (value,)),) = refused.items()
    with pytest.raises(InputError, match=rf"{name} is {value}|optimizer {value}"):
        study(refused)


def test_an_area_limit_is_the_base_s_own(tmp_path: Path) -> None:
    """Without a limit of its own a study has that of its base, under its area model."""
    text = MINIMAL + '[space]\nbase = "h100"\nnum_tc = [66, 132]\n'
    resolved = check_names(read_spec(written(tmp_path, text)))
    h100 = load_accelerator("h100")
    assert resolved.area_limit_mm2 == h100.area_under("phaze-22nm")
    resolved = check_names(read_spec(written(tmp_path, text + '[area]\nmodel = "chip"')))
    assert resolved.area_limit_mm2 == h100.area_under("chip")


@pytest.mark.parametrize(
    ("axes", "model", "power", "sentence"),
    [
        ("hbm_gb_per_s = [800, 1600]", "phaze-22nm", False, "does not charge for HBM bandwidth"),
        ("glb_bytes_per_cycle = [4096, 8192]", "phaze-22nm", False, "global buffer"),
        ("l2_tc_kib = [64, 256]", "phaze-22nm", False, "L2 size"),
        ("hbm_gb_per_s = '20 * hbm_gib'\nhbm_gib = [32, 80]", "phaze-22nm", False, "HBM bandwidth"),
        ("clock_ghz = [0.9, 1.1]", "phaze-22nm", True, "limit of the power"),
        ("clock_ghz = [0.9, 1.1]", "chip", False, "limit of the power"),
        ("peak_tflops = [200, 400]", "chip", False, "limit of the power"),
        ("l2_bytes_per_cycle = [64, 128]", "chip", True, "no area model charges"),
        # Charged for, fixed, or free to be searched by what they are.
        ("hbm_gb_per_s = [800, 1600]", "chip", False, None),
        ("glb_bytes_per_cycle = [4096, 8192]", "chip", False, None),
        ("l2_tc_kib = [64, 256]", "chip", False, None),
        ("clock_ghz = [0.9, 1.1]", "chip", True, None),
        ("hbm_gb_per_s = 1600\nclock_ghz = 1.1", "phaze-22nm", False, None),
        ("hbm_gb_per_s = '20 * hbm_gib'\nhbm_gib = 80", "phaze-22nm", False, None),
        ("hbm_gib = [32, 80]\ndevices = [4, 8]\nzero = [0, 1]", "phaze-22nm", False, None),
    ],
)
def test_nothing_is_searched_that_is_free(
    tmp_path: Path, axes: str, model: str, power: bool, sentence: str | None
) -> None:
    """What the area model does not charge for cannot be an axis, whatever name it has."""
    limit = "[constraints]\nmax_power_w = 500\n" if power else ""
    text = f'{MINIMAL}[area]\nmodel = "{model}"\n{limit}[space]\n{axes}\n'
    spec = read_spec(written(tmp_path, text))
    if sentence is None:
        check_names(spec)
        return
    with pytest.raises(InputError, match=sentence):
        check_names(spec)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is not found, rather than invalid."""
    with pytest.raises(NotFoundError, match="no study file"):
        read_spec(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["", "-rf", "a/b", "a b", "a;b", "\x1b[31m", "<b>", "x" * 101])
def test_hostile_names_are_refused(name: str) -> None:
    """A name that a shell, a path, a terminal or a page would stumble over is refused."""
    with pytest.raises(InputError, match="not allowed"):
        check_study_name(name)


@pytest.mark.parametrize(
    ("change", "sampler"),
    [
        ("", "bound"),
        ('objectives = ["throughput_per_area"]', "bound"),
        ('objectives = ["energy_per_sample"]', "bound"),
        ('objectives = ["area"]', "bound"),
        ('objectives = ["power"]', "climb"),
        ('objectives = ["throughput", "area"]', "tpe"),
        (
            "[space]\npe_x = { min = 32, max = 256 }\n"
            "num_tc = { min = 1, max = 100000, step = 1 }\n"
            "num_vc = { min = 1, max = 100000, step = 1 }",
            "climb",
        ),
        ("[search]\nsampler = 'random'", "random"),
        # A limit that the bounds do not know, and some that change nothing or that they do.
        ("[constraints]\nmax_power_w = 300", "bound"),
        ("[constraints]\nmax_devices = 4", "climb"),
        ("[constraints]\nmax_devices = 8", "bound"),
        ("[constraints]\nmax_time_per_batch_s = 2", "bound"),
        (
            "objectives = ['throughput_per_area']\n[constraints]\nmax_time_per_batch_s = 2",
            "bound",
        ),
        ("[constraints]\nmax_hbm_gib = 32\nmin_memory_margin = 0.1", "bound"),
    ],
)
def test_the_default_sampler_follows_from_the_question(
    tmp_path: Path, change: str, sampler: str
) -> None:
    """One with a bound where there is one and the chips can be listed; a stated one stays."""
    spec = read_spec(written(tmp_path, MINIMAL + change))
    assert spec.sampler == spec.search.sampler == sampler
    assert replace(spec, name="other").sampler == sampler


def test_only_a_known_expert_places_a_study() -> None:
    """A model without an expert placement, or at a tensor degree not captured, is refused."""
    known = StudySpec("e", "gpt3-175b", "flat-4GiB", 1024, 4096, placement="expert")
    with pytest.raises(InputError, match="splits gpt3-175b over 4 devices"):
        check_names(known)
    assert check_names(replace(known, tensor_parallel=(1, 4))).spec.placement == "expert"
    with pytest.raises(InputError, match="expert placement"):
        check_names(replace(known, model="llama3-8b"))
