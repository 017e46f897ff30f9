"""The package as it is installed: what a wheel holds, and what importing it loads."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import phaze_opt
from phaze_opt.units import format_number

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "ortools", "optuna", "pandas", "numba", "numpy", "sqlalchemy")
SHIPPED = (".py", ".toml", ".csv", ".zip", ".html", ".css", ".js", ".typed")
TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
PUBLIC_NAMES = {
    *("load_workload", "capture", "load_accelerator", "load_cluster"),
    *("Accelerator", "Cluster", "Training", "evaluate", "Evaluation", "Placement", "explain"),
    *("StudySpec", "Space", "create_study", "load_study", "Study"),
    *("PhazeError", "InputError", "NotFoundError", "ConflictError", "InfeasibleError"),
}


def installed_paths() -> set[str]:
    """Name every module and data file of the tree by its path in an installation."""
    paths = set()
    for folder, prefix in (("phaze_opt", "phaze_opt"), ("cli", "phaze_opt/cli")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in SHIPPED:
                paths.add(f"{prefix}/{path.relative_to(ROOT / folder).as_posix()}")
    return paths


def test_a_wheel_holds_exactly_the_tree(tmp_path: Path) -> None:
    """No room, module or data file is forgotten, and nothing else is shipped."""
    source = tmp_path / "source"
    for name in ("phaze_opt", "cli"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    # As pip does, which takes as long again to ask for what is stated.
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, stdout=subprocess.DEVNULL, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert shipped == installed_paths()


def run_program(program: str) -> str:
    """Run a program in a new interpreter and return what it prints."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    """The public names are there, and wait until they are used; results know who draws them."""
    program = (
        "import sys, phaze_opt; dir(phaze_opt);"
        f"print([name for name in {HEAVY!r} if name in sys.modules],"
        "[name for name in sys.modules if name.startswith('phaze_opt.')])"
    )
    assert run_program(program) == "[] ['phaze_opt.printing']"


def test_a_name_loads_its_own_room_only() -> None:
    """An error needs nothing; an evaluation and its tables need no compiler, torch or database."""
    program = (
        "import sys, phaze_opt as po; po.InputError;"
        f"print([name for name in {HEAVY!r} if name in sys.modules]);"
        "po.evaluate, po.explain, po.load_workload, po.load_accelerator, po.load_cluster;"
        "import phaze_opt.report.tables;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert run_program(program) == "[]\n['numpy']"


def test_the_public_names_are_these() -> None:
    """The list is kept on purpose; each name can be imported, and is the object of that name."""
    assert set(phaze_opt.__all__) == PUBLIC_NAMES
    assert dir(phaze_opt) == phaze_opt.__all__ == sorted(phaze_opt.__all__)
    for name in phaze_opt.__all__:
        assert getattr(phaze_opt, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        getattr(phaze_opt, "evaluat")  # noqa: B009 - the name is wrong on purpose


def test_modules_keep_their_names() -> None:
    """Importing a module gives the module, whatever public name was used before or after it."""
    program = (
        "import phaze_opt as po; po.evaluate; po.explain; po.capture;"
        "import phaze_opt.evaluation as m, phaze_opt.explanation as e;"
        "import phaze_opt.workload.capture as c;"
        "print(type(m).__name__, type(e).__name__, type(c).__name__, po.evaluate is m.evaluate,"
        "type(po.explain).__name__, type(po.capture).__name__, type(po).__name__)"
    )
    assert run_program(program) == "module module module True function function module"


def test_objects_have_one_line_and_tables() -> None:
    """The repr of every noun is one line; printing it shows tables."""
    workload = phaze_opt.load_workload(TINY, microbatch=(2,))
    chip = phaze_opt.load_accelerator("tpuv4-lanes", hbm_gib=80)
    cluster = phaze_opt.load_cluster("dgx-a100", devices=4)
    training = phaze_opt.Training(global_batch=16, microbatch=2)
    result = phaze_opt.evaluate(workload, chip, cluster, training)
    small = phaze_opt.load_accelerator("tpuv4-lanes", hbm_bytes=200_000)
    infeasible = phaze_opt.evaluate(workload, small, cluster, training)
    explanation = phaze_opt.explain(workload, chip, cluster, training)
    assert repr(chip).endswith("glb_bytes=134217728, hbm_bytes=85899345920)")
    assert eval(repr(chip), {"Accelerator": phaze_opt.Accelerator}) == chip
    assert eval(repr(training), {"Training": phaze_opt.Training}) == training
    assert f"{format_number(result.throughput_samples_per_s)} samples/s" in repr(result)
    assert repr(infeasible) == f"Evaluation(infeasible: {infeasible.reason})"
    assert repr(result) in repr(explanation)
    assert explanation.evaluation == result
    for noun, word in (
        (workload, "parameters"),
        (chip, "num_tc"),
        (cluster, "sustained"),
        (result, "samples/s"),
        (infeasible, "infeasible"),
        (result.placement, "of which stash"),
        (explanation, "It trains "),
    ):
        assert "\n" not in repr(noun)
        assert len(str(noun).splitlines()) > 3 and word in str(noun)


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python example of README.md runs as it stands, with one import."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "import phaze_opt" in block]
    assert example.count("import ") == 1
    assert len([line for line in example.splitlines() if line]) <= 17
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHAZE_STORAGE", raising=False)
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    for words in ("samples/s", "Time of a batch", "It trains ", "trial ", "× tpuv4-lanes"):
        assert words in shown
    assert (tmp_path / "phaze.db").exists()


def test_an_accelerator_needs_only_its_shape() -> None:
    """An accelerator is made as the documentation says."""
    chip = phaze_opt.Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * 2**20
    )
    assert chip.area_mm2 == pytest.approx(278.826676, abs=1e-6)


def test_the_citation_is_of_this_version() -> None:
    """It has what version 1.2.0 of the format requires, and says what the package says."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0" and citation["message"]
    assert citation["title"] == project["name"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["authors"] == [{"name": "phaze-opt contributors"}]
    for reference, year in zip(citation["references"], (2024, 2020), strict=True):
        assert reference["year"] == year and reference["type"] == "conference-paper"
        assert reference["title"] and reference["conference"]["name"]
        assert all(
            person.keys() == {"family-names", "given-names"} for person in reference["authors"]
        )
