"""``phaze-opt study``: give studies away, take them in, and work on them with other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from phaze_opt.units import counted

from .output import (
    ForceOption,
    JsonOption,
    StorageOption,
    check_outputs,
    print_json,
    print_table,
    say,
)
from .study_storage import NameArgument, open_database, open_study

NewArgument = Annotated[str, typer.Argument(help="Name of the new study.", show_default=False)]


def export(
    name: NameArgument,
    output: Annotated[Path, typer.Option(help="File to write.", show_default=False)],
    file_format: Annotated[
        Literal["csv", "json", "parquet", "bundle"],
        typer.Option("--format", help="One row or object per trial; a bundle is the whole study."),
    ] = "csv",
    force: ForceOption = False,
    storage: StorageOption = None,
) -> None:
    """Write the trials of a study, or all of it, into a file.

    A bundle is one file with the frozen spec, the captured models, trials, evaluations, schedules,
    notes, files of trials, and the certified optimum with its certificate where 'study enumerate'
    has found it; 'phaze-opt study import' makes the study of it anywhere.

    For example:

        phaze-opt study export quickstart --format csv --output trials.csv

        phaze-opt study export quickstart --format bundle --output quickstart.zip
    """
    study = open_study(name, storage)
    check_outputs(output, force=force)
    if file_format == "bundle":
        from phaze_opt.sharing.export_import import export_bundle

        written = export_bundle(study, output)
        results = counted(len(written.evaluations), "evaluation")
        print(f"{counted(len(written.trials), 'trial')} and {results} in {output}")
        return
    from phaze_opt.report.export import write_trials

    print(f"{counted(write_trials(study, output, file_format), 'trial')} in {output}")


def import_bundle(
    file: Annotated[Path, typer.Argument(help="Bundle of a study.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="Instead of that of its spec.", show_default=False)
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Make a study of a bundle; nothing is written unless the bundle is whole.

    'phaze-opt study run' goes on from where it stood. A bundle holds data, none of which is
    executed, but nobody has checked its numbers: evaluations of a stranger, and their word that a
    design is the best, are taken as they are. 'phaze-opt study enumerate NAME --certificate FILE'
    writes the certificate, which 'phaze-opt study verify FILE' checks without them.

    Example: phaze-opt study import quickstart.zip --name theirs
    """
    from phaze_opt.sharing.export_import import import_snapshot, read_bundle_file
    from phaze_opt.spec.frozen import current_version

    snapshot = read_bundle_file(file)
    study = import_snapshot(snapshot, open_database(storage, create=True), name)
    results = [
        counted(len(snapshot.trials), "trial"),
        counted(len(snapshot.evaluations), "evaluation"),
        *([] if snapshot.certificate is None else ["a certificate"]),
    ]
    print(f"study {study.name} ({study.resolved.hash[:12]}): {', '.join(results)}")
    if study.resolved.cost_model_version != current_version():
        say(
            "It has another cost-model version than this program: it can be looked at, and "
            f"'phaze-opt study copy {study.name} NEW --current-version' starts it anew."
        )


def merge(
    first: NameArgument,
    second: NameArgument,
    new: NewArgument,
    second_storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Database of the second study.", show_default="the same"),
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Join two studies of the same spec: every point once, with the study that it comes from.

    Where both have a point, the trial of the first is kept. 'phaze-opt study trials NEW --json'
    says of every trial which one it was ("origin").

    For example:

        phaze-opt study merge mine theirs ours

        phaze-opt study merge mine mine ours --second-storage sqlite:///laptop.db
    """
    from phaze_opt.report.publishing import publish
    from phaze_opt.sharing.merging import merge_studies
    from phaze_opt.study.study import load_study

    opened = open_database(storage)
    other = opened if second_storage is None else open_database(second_storage)
    merged = merge_studies(load_study(first, opened), load_study(second, other), new, opened)
    publish(merged.study)
    ours, theirs = merged.taken
    total = f"{counted(ours + theirs, 'trial')}, {ours} of {first} and {theirs} of {second}"
    print(f"study {new} ({merged.study.resolved.hash[:12]}): {total}")
    if merged.unlike:
        say(
            f"{merged.unlike} points have other values in {second}; those of {first} are kept. The "
            "same program gives the same values: was one of the studies altered?"
        )


def copy(
    name: NameArgument,
    new: Annotated[str, typer.Argument(help="Name of the copy.", show_default=False)],
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="Database of the copy.", show_default=False)
    ] = None,
    current_version: Annotated[
        bool,
        typer.Option(
            "--current-version", help="Start anew with this cost model, the best points first."
        ),
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Copy a study with its trials, or start it anew with this program's cost model.

    For example:

        phaze-opt study copy quickstart shared --to postgresql://me@host/studies

        phaze-opt study copy quickstart again --current-version
    """
    from phaze_opt.sharing.copying import copy_study, restart_study

    study = open_study(name, storage)
    target = study.storage if to is None else open_database(to, create=True)
    made = (restart_study if current_version else copy_study)(study, new, target)
    print(f"study {made.name} ({made.resolved.hash[:12]})")


def workers(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the study; by default all.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """List who works on a study, on whatever machine: on which trial, and since when.

    A worker renews its lease while it lives; when it is over, others take its trial over. "code" is
    the hash of the program that it runs; a note says where trials of a study were run by several.

    Example: phaze-opt study workers quickstart --json
    """
    from phaze_opt.report.study_words import code_words
    from phaze_opt.store.stored_study import find_study
    from phaze_opt.store.studies import study_uids
    from phaze_opt.store.workers import list_workers, worker_to_json_dict

    opened = open_database(storage)
    made = [each for each, uid in study_uids(opened).items() if uid is not None]
    names = made if name is None else [name]
    studies = [find_study(each, opened) for each in names]
    workers = [worker for study in studies for worker in list_workers(study)]
    for study in studies:
        mixed = code_words(study.office().codes(), study.resolved.cost_model_version)
        if mixed is not None:
            say(f"{study.name}: {mixed}.")
    if as_json:
        print_json([worker_to_json_dict(worker) for worker in workers])
        return
    from phaze_opt.report.workers import workers_table

    print_table(workers_table(workers))


def stop(name: NameArgument, storage: StorageOption = None) -> None:
    """Ask all workers of a study, on whatever machine, to finish their trial and end.

    Example: phaze-opt study stop quickstart
    """
    open_study(name, storage).stop()
    print(f"{name} stops after the running trials")
