"""Run the experiments of the paper and write their results: ``python -m studies.paper``."""

from __future__ import annotations

from pathlib import Path

from phaze_opt.codec import write_whole
from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.sharing.export_import import export_bundle
from studies.paper.checks import check
from studies.paper.committed import redraw
from studies.paper.experiments import Results, run_everything
from studies.paper.figures import figures
from studies.paper.page import page
from studies.paper.searches import study_in
from studies.paper.settings import SPECS, Scope, paper_study
from studies.paper.tables import csv_files
from studies.run_options import run_parser
from studies.work import Work

BUNDLED = "gpt3-175b"
"""Model whose study is written as a bundle."""


def main() -> None:
    """Answer what is not answered yet, check everything, and write it."""
    parser = run_parser("paper", __doc__, Path("build/paper"), SPECS)
    parser.add_argument(
        "--redraw", action="store_true", help="only draw figures again, from the files of a run"
    )
    options = parser.parse_args()
    if options.redraw:
        redraw(options.output)
        return
    work = Work(options.work, options.workers)
    scope = Scope()
    results = run_everything(work, scope)
    write(results, options.output, BUNDLED)
    bundle(work, scope, BUNDLED)
    print(f"The results are in {options.output / 'RESULTS.md'}.")


def write(results: Results, folder: Path, bundled: str) -> None:
    """Check the results, and write the page, its tables and its figures."""
    checked = check(results)
    files = csv_files(results) | figures(results)
    files["RESULTS.md"] = page(results, COST_MODEL_VERSION, checked, bundled)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text.encode())


def bundle(work: Work, scope: Scope, model: str) -> Path:
    """Write the study of a model, with its best designs as trials, as a bundle."""
    study = study_in(work, paper_study(scope, model))
    study.run(workers=1)
    path = work.folder / f"{model}.zip"
    export_bundle(study, path)
    return path


if __name__ == "__main__":
    main()
