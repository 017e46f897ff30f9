"""Answer the questions of the atlas and write its page: ``python -m studies.atlas``."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from phaze_opt.codec import write_whole
from studies.atlas.answers import answer, common_answer
from studies.atlas.page import PARTS, page
from studies.atlas.questions import FOLDER, MODELS, Question, common_studies, questions, read_base
from studies.run_options import run_parser
from studies.work import Work


def main() -> None:
    """Answer what is not answered yet, and write it."""
    parser = run_parser("atlas", __doc__, Path("build/atlas"), FOLDER)
    only = "names of studies: 'atlas-llama3-8b*'"
    parser.add_argument("--only", nargs="+", default=["*"], help=only)
    parts = f"of the page: {', '.join(PARTS)}, common (with models)"
    parser.add_argument("--parts", nargs="+", help=parts)
    parser.add_argument("--check", action="store_true", help="check the certificates")
    options = parser.parse_args()
    work = Work(options.work, options.workers)
    asked = _asked(options.only, options.parts)
    answers = [answer(work, question, check=options.check) for question in asked]
    models = [each.question for each in answers if each.question.part == "models"]
    common = []
    if len(models) == len(MODELS) and (options.parts is None or "common" in options.parts):
        common = [common_answer(work, each, models) for each in common_studies(read_base())]
    write_whole(options.output / "RESULTS.md", page(answers, common).encode())


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


if __name__ == "__main__":
    main()
