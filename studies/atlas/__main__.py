"""Answer the questions of the atlas and write its page: ``python -m studies.atlas``."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from phaze_opt.codec import write_whole
from studies.atlas.answers import answer
from studies.atlas.page import page
from studies.atlas.questions import FOLDER, VARIED, questions
from studies.run_options import run_parser
from studies.work import Work


def main() -> None:
    """Answer what is not answered yet, and write it."""
    parser = run_parser("atlas", __doc__, Path("build/atlas"), FOLDER)
    parser.add_argument("--only", default="*", help="names of studies: 'atlas-llama3-8b*'")
    parser.add_argument("--parts", nargs="+", help="of the page: models, bits, devices, variants")
    parser.add_argument("--check", action="store_true", help="check the certificates")
    options = parser.parse_args()
    work = Work(options.work, options.workers)
    answers = [
        answer(work, question, chip_first=question.words in VARIED, check=options.check)
        for question in questions()
        if fnmatch(question.spec.name, options.only)
        if options.parts is None or question.part in options.parts
    ]
    write_whole(options.output / "RESULTS.md", page(answers).encode())


if __name__ == "__main__":
    main()
