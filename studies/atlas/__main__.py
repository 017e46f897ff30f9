"""Answer the questions of the atlas and write its page: ``python -m studies.atlas``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from phaze_opt.codec import write_whole
from phaze_opt.errors import InputError
from studies.atlas.answers import answer, check, common_answer, is_proven, is_searched
from studies.atlas.figures import picture
from studies.atlas.page import page
from studies.atlas.parts import PARTS, PICTURE
from studies.atlas.questions import (
    FOLDER,
    MODELS,
    VARIED,
    Question,
    common_studies,
    questions,
    read_base,
)
from studies.atlas.robustness import DESIGNS, DRAWS, robust
from studies.run_options import run_parser
from studies.work import Work

STEPS = ("draws-", "steady-")
"""How the names of parts begin that others are made of; draws take megabytes."""


def main() -> None:
    """Answer what is not answered yet, and write it."""
    parser = run_parser("atlas", __doc__, Path("build/atlas"), FOLDER)
    only = "names of studies: 'atlas-llama3-8b*'"
    parser.add_argument("--only", nargs="+", default=["*"], help=only)
    parts = f"of the page: {', '.join(PARTS)}, common (with models)"
    parser.add_argument("--parts", nargs="+", help=parts)
    parser.add_argument("--check", action="store_true", help="check the certificates")
    begin = "begin with these; all answers are written there, by default beside the page"
    parser.add_argument("--answers", type=Path, metavar="FILE", help=begin)
    kept = "search nothing: write what is known, and what is left"
    parser.add_argument("--kept", action="store_true", help=kept)
    parser.add_argument(
        "--robustness",
        nargs="*",
        metavar="MODEL",
        choices=[asked.name for asked in MODELS],
        help=f"rank again under joint draws of all constants; by default {', '.join(VARIED)}",
    )
    parser.add_argument("--draws", type=_count, default=DRAWS, help="of the constants")
    parser.add_argument("--top", type=_count, default=DESIGNS, help="best designs to rank again")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    drawn = VARIED if options.robustness == [] else options.robustness or ()
    work = Work(options.work, options.workers)
    if options.answers is not None:
        try:
            work.take_in(options.answers)
        except InputError as error:
            parser.error(str(error))
    asked = _asked(options.only, options.parts)
    left = [each for each in asked if options.kept and not is_proven(work, each)]
    asked = [question for question in asked if question not in left]
    work.in_processes(answer, [each for each in asked if not is_proven(work, each)])
    # What is known is read in this process: others take seconds to begin.
    answers = check(work, [answer(work, each) for each in asked], kept=not options.check)
    models = [each.question for each in answers if each.question.part == "models"]
    common = []
    if len(models) == len(MODELS) and (options.parts is None or "common" in options.parts):
        for spec in common_studies(read_base()):
            if not options.kept or is_searched(work, spec):
                common.append(common_answer(work, spec, models))
    for place, (found, question) in enumerate([(each, each.question) for each in answers]):
        if question.part == "models" and question.words in drawn:
            again = robust(work, question.spec, options.top, options.draws)
            answers[place] = replace(found, robust=again)
    work.write_all(options.answers or options.output / "answers.jsonl", steps=STEPS)
    spent_s = work.spent_s(checks=False, steps=STEPS), work.spent_s(checks=True)
    text = page(answers, common, left, spent_s)
    write_whole(options.output / "RESULTS.md", text.encode())
    if models:
        write_whole(options.output / PICTURE, picture(answers).encode())


def _asked(only: Sequence[str], parts: Sequence[str] | None) -> list[Question]:
    """Return the questions of some names and parts, and those that they are set against."""
    asked: list[Question] = []
    against: set[str] = set()
    for question in reversed(list(questions())):
        named = any(fnmatch(question.spec.name, pattern) for pattern in only)
        if question.spec.name in against or (named and (parts is None or question.part in parts)):
            asked.append(question)
            against.add(question.against)
    return asked[::-1]


def _count(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    main()
