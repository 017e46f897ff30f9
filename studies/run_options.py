"""The options that the programs of this folder share."""

from __future__ import annotations

import argparse
from pathlib import Path


def run_parser(
    program: str, description: str | None, work: Path | None, output: Path | None
) -> argparse.ArgumentParser:
    """Return a parser of ``--workers``, ``--work`` and ``--output``.

    Parameters
    ----------
    program
        Of ``studies``: ``budget`` for ``python -m studies.budget``.
    description
        What it does.
    work, output
        Where it keeps what it finds, and writes its results, by default; ``None`` where that
        follows from other options.
    """
    parser = argparse.ArgumentParser(prog=f"python -m studies.{program}", description=description)
    parser.add_argument("--workers", type=int, default=2, help="processes that search a space")
    parser.add_argument("--work", type=Path, default=work, help="folder of what was found")
    parser.add_argument("--output", type=Path, default=output, help="folder of the results")
    return parser
