"""``phaze-opt study``: create, run, look at and keep searches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.errors import InputError, NotFoundError, PhazeError
from phaze_opt.printing import printable
from phaze_opt.units import format_number

from . import study_share as share
from .output import (
    ForceOption,
    JsonOption,
    StorageOption,
    check_outputs,
    print_json,
    print_json_rows,
    print_table,
    say,
    warn_of_power,
)
from .study_compare import compare
from .study_enumerate import DaskOption, enumerate_all, verify
from .study_front import pareto, robust
from .study_storage import NameArgument, open_database, open_study, say_storage

if TYPE_CHECKING:
    from phaze_opt.study.best_design import BestDesign
    from phaze_opt.study.study import Study

app = typer.Typer(
    no_args_is_help=True, help="Search for the best accelerator and placement, in a database."
)


@app.command()
def create(
    spec: Annotated[Path, typer.Argument(help="Study file (TOML).", show_default=False)],
    name: Annotated[str | None, typer.Option(help="Instead of the file's name.")] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Accept the same study if it is there already.")
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Freeze a study file, with its captured model, into a database.

    Example: phaze-opt study create studies/quickstart.toml --exist-ok
    """
    from phaze_opt.report.study_words import limit_words
    from phaze_opt.spec.study_spec import read_spec
    from phaze_opt.study.baselines import outside_space
    from phaze_opt.study.study import create_study

    checked, url = read_spec(spec), say_storage(storage)
    study = create_study(checked, url, name=name, exist_ok=exist_ok)
    print(f"study {study.name} ({study.resolved.hash[:12]})")
    for baseline in study.resolved.baselines:
        reason = outside_space(study.resolved, baseline)
        if reason is not None:
            say(f"No trial can find the baseline {baseline.name}: {reason}.")
    say(limit_words(study.resolved.spec))


@app.command()
def run(
    name: NameArgument,
    trials: Annotated[
        int | None,
        typer.Option(help="Complete trials in TOTAL; by default what the study file says."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    dask: DaskOption = None,
    storage: StorageOption = None,
) -> None:
    """Run a study; Ctrl-C finishes the running trial, and the same command goes on.

    It ends with the best design: the passes that the search left open are solved further, and
    'study show' says what is proven of them.

    For example:

        phaze-opt study run quickstart

        phaze-opt study run quickstart --trials 300 --workers 2

        phaze-opt study run ours --dask tcp://host:8786
    """
    from phaze_opt.report.publishing import Publisher
    from phaze_opt.report.study_words import limit_words
    from phaze_opt.study.summary import next_command

    from .progress import run_progress

    study = open_study(name, storage)
    say(limit_words(study.resolved.spec))
    with run_progress() as show:
        outcome = study.run(trials, workers=workers, on_progress=show, show=Publisher, dask=dask)
    print(outcome)
    if outcome.is_stopped:
        say(f"Stopped; '{next_command(name, outcome.total, study.resolved)}' goes on from here.")
    if outcome.exit_code is not None:
        raise typer.Exit(outcome.exit_code)
    if outcome.failures:
        raise PhazeError(f"{outcome.counts.failed} trials failed: {' '.join(outcome.failures[:3])}")


@app.command()
def show(
    name: NameArgument,
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every second until it is done.")
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Show the answer so far, against both baselines, and how it was found.

    For example:

        phaze-opt study show quickstart

        phaze-opt study show quickstart --watch
    """
    from phaze_opt.study.summary import summary_to_json_dict
    from phaze_opt.whole_space.enumerating import certified_to_json_dict, stored_enumeration

    study = open_study(name, storage)
    if watch and not as_json:
        from .progress import watch_study

        watch_study(study)
        return
    summary = study.summary()
    if as_json:
        certified = certified_to_json_dict(study)
        print_json({**summary_to_json_dict(summary), "certified": certified})
    else:
        from phaze_opt.report.studies import summary_table

        print_table(summary_table(summary, stored_enumeration(study)))
    if summary.best is not None:
        warn_of_power(summary.best.evaluations)


@app.command()
def best(
    name: NameArgument,
    accelerator_toml: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Also write its accelerator, a file for any command."),
    ] = None,
    force: ForceOption = False,
    proof: Annotated[
        bool,
        typer.Option(
            "--proof", help="Also solve its open schedules further, as the end of a run does."
        ),
    ] = False,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """Show the best design with its whole evaluation.

    The evaluation is the one of the search; "pass_proofs" in its JSON says what is proven of its
    passes, and --proof says it on stderr, before a run has ended too.

    Example: phaze-opt study best quickstart --json

    Example: phaze-opt study best quickstart --accelerator-toml winner.toml
    """
    from phaze_opt.study.best_design import best_to_json_dict

    study = open_study(name, storage)
    check_outputs(accelerator_toml, force=force)
    best = study.best()
    if best is None:
        raise NotFoundError(
            f"The study {name!r} has no feasible trial yet; 'phaze-opt study run {name}' goes on."
        )
    # Before the answer is printed: whoever reads that may end before this does.
    if accelerator_toml is not None:
        _write_accelerator(accelerator_toml, name, best)
    if as_json:
        print_json(best_to_json_dict(name, best))
    else:
        from phaze_opt.report.studies import best_tables

        print_table(best_tables(best))
    warn_of_power(best.evaluations)
    if proof:
        _say_proof(study, best)


def _say_proof(study: Study, best: BestDesign) -> None:
    """Solve the open schedules of the best design further, and say what is proven then."""
    from phaze_opt.report.words import pass_proof_words
    from phaze_opt.study.best_design import solve_best_further

    for evaluation, proofs in solve_best_further(study, best):
        speed = f"{format_number(evaluation.throughput_samples_per_s)} samples/s"
        say(f"with proof {speed}; passes: {pass_proof_words(proofs)}")


def _write_accelerator(path: Path, name: str, best: BestDesign) -> None:
    """Write the chip of the best design of a study as an accelerator file."""
    from phaze_opt.hardware.chip_file import AcceleratorPreset, chip_file_text
    from phaze_opt.user_files import write_file

    described = f"Best of the study {name}, trial {best.number}"
    chip = AcceleratorPreset(name, described, best.accelerator, {})
    write_file(path, chip_file_text(chip))
    say(f"{path} holds the accelerator.")


@app.command("ls")
def list_all(as_json: JsonOption = False, storage: StorageOption = None) -> None:
    """List the studies of a database; those that cannot be read are named on stderr.

    Example: phaze-opt study ls --json
    """
    from phaze_opt.store.studies import find_orphans
    from phaze_opt.study.study import list_summaries
    from phaze_opt.study.summary import summary_to_json_dict

    opened = open_database(storage)
    summaries, unreadable = list_summaries(opened)
    if as_json:
        print_json([summary_to_json_dict(summary) for summary in summaries])
    else:
        from phaze_opt.report.studies import studies_table

        print_table(studies_table(summaries))
    for name, reason in unreadable.items():
        say(f"unreadable {name}: {reason} 'study delete' removes it.")
    for uid, name in find_orphans(opened).items():
        say(f"orphan {name} ({uid}): its trials are gone; 'study delete --orphans' removes it")


@app.command()
def trials(
    name: NameArgument,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only trials with =, !=, <, <=, > or >= of a key."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The smallest first; -KEY for the largest.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """List trials of a study; the keys are those of --json.

    For example:

        phaze-opt study trials quickstart --sort=-value --limit 10

        phaze-opt study trials quickstart --where state=feasible --where "num_tc>=8" --json
    """
    from phaze_opt.study.trial_choice import choose_trials
    from phaze_opt.study.trials import trial_to_json_dict

    study = open_study(name, storage)
    chosen = choose_trials(study.each_trial, where=where or (), sort=sort, limit=limit)
    if as_json:
        print_json_rows(map(trial_to_json_dict, chosen))
        return
    from phaze_opt.report.studies import trials_tables

    for table in trials_tables(study.resolved.spec, chosen):
        print_table(table)


@app.command()
def diff(
    first: NameArgument,
    second: NameArgument,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """Show what differs between two studies: in their specs, and in what they found.

    Example: phaze-opt study diff quickstart mine
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.study.difference import compare_studies
    from phaze_opt.study.study import load_study

    opened = open_database(storage)
    difference = compare_studies(load_study(first, opened), load_study(second, opened))
    if as_json:
        print_json(to_builtins(difference))
        return
    from phaze_opt.report.specs import difference_tables

    print_table(difference_tables(difference))


@app.command()
def delete(
    name: Annotated[
        str | None, typer.Argument(help="Name of the study.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Delete what studies deleted elsewhere left behind.")
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Delete a study with its trials.

    Example: phaze-opt study delete quickstart --yes
    """
    if orphans == (name is not None):
        raise InputError("Either the NAME of a study or --orphans must be given.")
    if name is None:
        from phaze_opt.store.studies import delete_orphans

        print(f"deleted {delete_orphans(open_database(storage))} orphans")
        return
    from phaze_opt.store.studies import delete_study, uid_of

    opened = open_database(storage)
    uid_of(name, opened)
    if not yes:
        try:
            typer.confirm(f"Delete the study {printable(name)} with all its trials?", abort=True)
        except typer.Abort as stop:
            if isinstance(stop.__context__, EOFError):
                raise InputError("Nobody can be asked here; --yes deletes unasked.") from None
            raise
    delete_study(name, opened)
    print(f"deleted {printable(name)}")


app.command()(compare)
app.command("enumerate")(enumerate_all)
app.command()(verify)
for _command in (share.export, share.merge, share.copy, share.workers, share.stop):
    app.command()(_command)
app.command("import")(share.import_bundle)
app.command()(pareto)
app.command()(robust)
