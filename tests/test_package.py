"""The package as it is installed: what a wheel holds, and what importing it loads."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import phaze_opt

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "ortools", "optuna", "pandas", "numba", "numpy", "sqlalchemy")


def installed_paths() -> set[str]:
    """Name every module and data file of the tree by its path in an installation."""
    paths = set()
    for folder, prefix in (("phaze_opt", "phaze_opt"), ("cli", "phaze_opt/cli")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".toml", ".csv", ".typed"):
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
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert shipped == installed_paths()


def test_importing_the_package_loads_nothing_heavy() -> None:
    """The public names are there, and wait until they are used."""
    program = (
        "import sys, phaze_opt; dir(phaze_opt);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists() -> None:
    """What ``__all__`` promises can be imported."""
    for name in phaze_opt.__all__:
        assert getattr(phaze_opt, name) is not None


def test_an_accelerator_needs_only_its_shape() -> None:
    """An accelerator is made as the documentation says."""
    chip = phaze_opt.Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * 2**20
    )
    assert round(chip.area_mm2, 6) == 278.826676
