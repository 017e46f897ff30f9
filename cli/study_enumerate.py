"""``phaze-opt study enumerate`` and ``verify``: the best designs of a whole space, certified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.errors import InputError

from .output import (
    ForceOption,
    JsonOption,
    StorageOption,
    check_outputs,
    print_json,
    print_table,
    say,
)
from .study_storage import NameArgument, open_study
from .whole_space import WorkersOption, goes_on

if TYPE_CHECKING:
    from phaze_opt.study.study import Study
    from phaze_opt.whole_space.certificate import Certificate
    from phaze_opt.whole_space.exhaustive import Enumeration
    from phaze_opt.whole_space.verifying import Check

TimeLimitOption = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds; then the best so far.", show_default=False),
]
DaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Workers of a dask scheduler, for example tcp://host:8786, instead of processes.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    float | None,
    typer.Option(metavar="F", help="Refuse a space that needs more.", show_default=False),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write what 'study verify' checks.", show_default=False),
]


def enumerate_all(
    name: NameArgument,
    top: Annotated[int, typer.Option(help="Designs that are proven to be the best.")] = 20,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Of one architecture or equal values only the best.")
    ] = False,
    bounds: Annotated[
        bool, typer.Option("--bounds/--no-bounds", help="Leave out what cannot win.")
    ] = True,
    time_limit: TimeLimitOption = None,
    workers: WorkersOption = None,
    dask: DaskOption = None,
    memory_gib: MemoryOption = None,
    certificate: CertificateOption = None,
    force: ForceOption = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Check the certificate when it is made.")
    ] = False,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """Find the best designs of the whole space, proven; Ctrl-C keeps what is done.

    Boxes of chips are bounded first, then the chips of the best boxes, then the best bounds are
    evaluated until none is left that could enter the top. The answer is stored.

    For example:

        phaze-opt study enumerate phaze-bert-large --json

        phaze-opt study enumerate quickstart --certificate quickstart.json

        phaze-opt study enumerate quickstart --distinct --top 5
    """
    from phaze_opt.bounds.space_size import space_size
    from phaze_opt.report.study_words import enumeration_limit_words
    from phaze_opt.whole_space.enumerating import enumerate_study, enumeration_to_json_dict

    from .progress import enumeration_progress

    study = open_study(name, storage)
    partly = time_limit is not None or not bounds or distinct
    if (certificate is not None or check) and partly:
        raise InputError(
            "A certificate is of a whole enumeration with bounds; leave out --time-limit, "
            "--no-bounds and --distinct."
        )
    check_outputs(certificate, force=force)
    size = space_size(study.resolved, study.workloads())
    if memory_gib is not None:
        size.check_memory(memory_gib)
    say(str(size))
    say(enumeration_limit_words(study.resolved.spec) if bounds else None)
    with goes_on(f"phaze-opt study enumerate {name}"), enumeration_progress() as show:
        enumeration = enumerate_study(
            study,
            top=top,
            distinct=distinct,
            bounds=bounds,
            time_limit_s=time_limit,
            workers=workers,
            dask=dask,
            on_progress=show,
        )
    if certificate is not None or check:
        _certify(study, enumeration, top, certificate, check)
    if as_json:
        print_json(enumeration_to_json_dict(study, enumeration))
        return
    from phaze_opt.report.enumeration import enumeration_tables

    print_table(enumeration_tables(study, enumeration))


def _certify(
    study: Study, enumeration: Enumeration, top: int, file: Path | None, check: bool
) -> None:
    """Make the certificate of an enumeration; write it, check it, or both."""
    from phaze_opt.whole_space.certificate import write_certificate
    from phaze_opt.whole_space.enumerating import kept_certificate

    made = kept_certificate(study, enumeration, top)
    if file is not None:
        write_certificate(file, made)
        say(f"{file} holds the certificate.")
    if check:
        _verify(made)


def verify(
    file: Annotated[Path, typer.Argument(help="Certificate.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Check the certificate of an enumeration, with nothing but the file and this program.

    The space is enumerated again. Boxes are counted chip by chip; boxes, and the closed chips of
    opened boxes, are bounded again in plain Python, and what comes near the top is evaluated, with
    samples of all. Exit code 1 where a number is not what it should be.

    Example: phaze-opt study verify quickstart.json
    """
    from phaze_opt.whole_space.certificate import read_certificate

    certificate = read_certificate(file)
    checks = _verify(certificate)
    if as_json:
        plain = [{"what": check.what, "checked": check.checked, "of": check.of} for check in checks]
        print_json({"study": certificate.study.spec.name, "status": "verified", "checks": plain})
        return
    print(
        f"{certificate.study.spec.name}: verified; no design of {certificate.points:,} is better "
        f"than the best {len(certificate.top)} (cost model {certificate.study.cost_model_version})"
    )


def _verify(made: Certificate) -> list[Check]:
    """Check a certificate, and say what is checked."""
    from phaze_opt.whole_space.enumerating import verify_certificate

    def show(check: Check) -> None:
        say(f"checked {check.checked:,} of {check.of:,} {check.what}")

    return verify_certificate(made, on_check=show)
