"""Changes core code in many small ways, and says which of the changes no test notices.

``python -m tests.mutations [--only PATTERN] [--list]``

Every row of `data/mutations.toml` replaces a text that stands once in a file of `phaze_opt`, and
names the tests of that room that must fail then. It is applied alone, in a copy of the checkout
that has what was compiled before, so that only the room of a compiled file is compiled anew. The
exit code is 1 where a change survives, and 2 where the table does not fit the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import Phase, settings

from phaze_opt.codec import from_builtins, read_toml_file

CHECKOUT = Path(__file__).parents[1]
TABLE = CHECKOUT / "tests" / "data" / "mutations.toml"

_LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.db*")
"""What no test needs of a checkout."""

_PROFILE = "mutations"
settings.register_profile(
    _PROFILE, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
"""Of hypothesis: every run has the same examples, and no failure is made smaller."""

_PASSED, _FAILED = 0, 1
"""Exit codes of pytest; others say that no test could run."""


@dataclass(frozen=True)
class Mutation:
    """One change of the code.

    Attributes
    ----------
    file
        In `phaze_opt`.
    old, new
        The text that stands there once, and what it becomes.
    tests
        Files in `tests`, or tests of them (``file.py::name``), of which some must fail.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {old}  →  {new or '(nothing)'}"

    def applied(self, checkout: Path) -> str:
        """Return the file as it is changed.

        Raises
        ------
        ValueError
            If the old text does not stand there once.
        """
        text = (checkout / "phaze_opt" / self.file).read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"stands {text.count(self.old)} times, but must once: {self}")
        return text.replace(self.old, self.new)


def mutations(pattern: str = "") -> list[Mutation]:
    """Return those of the table whose file or texts hold a pattern."""
    rows = read_toml_file(TABLE, "table of mutations")["mutation"]
    every = [from_builtins(row, Mutation, "mutation") for row in rows]
    return [one for one in every if pattern in str(one)]


def run_tests(checkout: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a checkout until one fails."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", __spec__.name]
    options += [f"--hypothesis-profile={_PROFILE}", "--tb=no", "--no-header"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)],
        cwd=checkout,
        # Two files of one size, written in one second, would share what Python compiles.
        env=os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def attempt(checkout: Path, mutation: Mutation) -> str:
    """Apply a mutation to a copy of the checkout while its tests run; say what came of it."""
    path = checkout / "phaze_opt" / mutation.file
    before, after = path.read_text("utf-8"), mutation.applied(checkout)
    path.write_text(after, "utf-8")
    try:
        ran = run_tests(checkout, mutation.tests)
    finally:
        path.write_text(before, "utf-8")
    return {_PASSED: "SURVIVED", _FAILED: "killed"}.get(ran.returncode, "BROKEN")


def main(arguments: Sequence[str]) -> int:
    """Try the mutations, and say of each what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="a part of file or text")
    parser.add_argument("--list", action="store_true", help="check the table, and run nothing")
    options = parser.parse_args(arguments)
    chosen = mutations(options.only)
    wrong = []
    for one in chosen:
        try:
            one.applied(CHECKOUT)
        except ValueError as error:
            wrong.append(str(error))
    if options.list or wrong or not chosen:
        print(*(wrong or chosen), sep="\n")
        return 2 if wrong or not chosen else 0
    tally: Counter[str] = Counter()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="phaze-mutations-") as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, checkout, ignore=_LEFT_OUT)
        ran = run_tests(checkout, sorted({test for one in chosen for test in one.tests}))
        if ran.returncode != _PASSED:
            print("Before any change:", ran.stdout, ran.stderr, sep="\n", file=sys.stderr)
            return 2
        print(f"unchanged  {time.monotonic() - began_s:5.0f} s", flush=True)
        for one in chosen:
            started_s = time.monotonic()
            what = attempt(checkout, one)
            tally[what] += 1
            print(f"{what:10} {time.monotonic() - started_s:5.0f} s  {one}", flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))
    print(f"{counts} in {time.monotonic() - began_s:.0f} s")
    return 2 if tally["BROKEN"] else int(tally["SURVIVED"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
