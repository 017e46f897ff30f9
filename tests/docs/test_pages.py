"""What the pages promise, as far as reading them shows it; `tests.docs.run` runs them."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from docs.tools.links import ROOT
from docs.tools.snippets import Machine, commands, fences, run_page

README = (ROOT / "README.md").read_text("utf-8")
COST_MODEL = (ROOT / "docs" / "cost-model.md").read_text("utf-8")
PAGES = sorted((ROOT / "docs").glob("*.md"))
SCREEN_LINES = 60


def test_the_readme_has_two_screens() -> None:
    """Everything else stands in `docs`."""
    assert len(README.splitlines()) <= 2 * SCREEN_LINES


def test_the_readme_says_nothing_else_than_the_pages() -> None:
    """Its table of speed is part of the whole one, its answer part of the quickstart's."""
    performance = (ROOT / "docs" / "performance.md").read_text("utf-8")
    rows = README.split("| work | time |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 4
    for row in rows:
        assert row in performance
    (answer,) = [part for part in README.split("```") if part.startswith("\nquickstart: ")]
    quickstart = (ROOT / "docs" / "quickstart.md").read_text("utf-8").splitlines()
    for line in answer.strip().splitlines():
        assert line in quickstart


def test_every_formula_stands_beside_its_function() -> None:
    """A formula is followed by a function of the project before the next formula comes."""
    parts = COST_MODEL.split("```math\n")[1:]
    assert len(parts) > 20
    for part in parts:
        formula, _, after = part.partition("```")
        named = re.search(r"^::: (phaze_opt[\w.]+)$", after, re.MULTILINE)
        assert named, formula
        module, _, name = named[1].rpartition(".")
        assert hasattr(importlib.import_module(module), name), named[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_is_shown_that_is_not_run(page: Path) -> None:
    """A file that a page shows has a name, under which its commands find it."""
    text = page.read_text("utf-8")
    for fence in fences(text):
        assert fence.title or fence.language in ("console", "python", "math", "text"), fence
    titled = {fence.title for fence in fences(text) if fence.title}
    shown = "\n".join(fence.text for fence in fences(text) if fence.language == "console")
    for title in titled:
        assert title.partition(".")[0] in shown, title


def test_commands_go_over_lines_and_have_output() -> None:
    """A backslash goes on; other lines are output; a comment says the exit code."""
    first, second = commands("$ a \\\n    b\nprinted\n$ c  # exit code 5\n")
    assert (first.line, first.exit_code, first.shown) == ("a b", 0, ("printed",))
    assert (second.exit_code, second.shown) == (5, ())


@pytest.mark.parametrize(
    ("shown", "passes"),
    [
        ("$ echo one; echo two\none\ntwo\n", True),
        ("$ echo one; echo two\ntwo\n", True),
        ("$ echo one; echo two\ntwo\none\n", False),
        ("$ echo one\nother\n", False),
        ("$ exit 3\n", False),
        ("$ exit 3   # exit code 3\n", True),
        ("$ export WORD=said\n$ echo $WORD\nsaid\n", True),
        ("$ cat file.txt\nwritten\n", True),
        ("$ make nothing-of-the-kind\n", False),
        ("$ make test\n", True),
    ],
)
def test_a_page_must_print_what_it_shows(
    shown: str, passes: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Otherwise running it would show nothing."""
    folder = tmp_path_factory.mktemp("page")
    page = f'```text title="file.txt"\nwritten\n```\n\n```console\n{shown}```\n'
    if passes:
        run_page(page, Machine(folder, folder))
    else:
        with pytest.raises(AssertionError):
            run_page(page, Machine(folder, folder))


def lock(name: str) -> dict[str, str]:
    """Return the versions of a lock by package."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    pinned = (line.split("==") for line in lines if "==" in line)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pinned}


def test_the_documentation_is_built_at_pinned_versions() -> None:
    """All of the extra `docs` is in its lock, which changes nothing of the project's own."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = extra["project"]["optional-dependencies"]["docs"]
    own, project = lock("requirements-docs.lock"), lock("requirements.lock")
    for requirement in wanted:
        assert re.split(r"[\[<>=]", requirement)[0] in own
    assert not own.keys() & project.keys()
    assert "-c requirements.lock" in (ROOT / "requirements-docs.lock").read_text("utf-8")
