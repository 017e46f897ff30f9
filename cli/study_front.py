"""``phaze-opt study pareto`` and ``robust``: what the whole space says beside its best design."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import JsonOption, StorageOption, print_json, print_table
from .study_storage import NameArgument, open_study
from .whole_space import WorkersOption, goes_on


def pareto(
    name: NameArgument,
    energy: Annotated[
        bool, typer.Option("--energy", help="Also the least energy per sample.")
    ] = False,
    bounds: Annotated[
        bool, typer.Option("--bounds/--no-bounds", help="Leave out what another design beats.")
    ] = True,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """Find the designs of the whole space that no other one beats; Ctrl-C keeps what is done.

    The front is that of throughput and area, or of the objectives of the study where it has
    several. It is proven as by 'study enumerate', and stored.

    Example: phaze-opt study pareto phaze-bert-large --json
    """
    from phaze_opt.whole_space.fronts import front_of_study, front_to_json_dict

    from .progress import enumeration_progress

    study = open_study(name, storage)
    with goes_on(f"phaze-opt study pareto {name}"), enumeration_progress() as show:
        front = front_of_study(
            study, energy=energy, bounds=bounds, workers=workers, on_progress=show
        )
    if as_json:
        print_json(front_to_json_dict(study, front))
        return
    from phaze_opt.report.fronts import front_tables

    print_table(front_tables(study, front))


def robust(
    name: NameArgument,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """Enumerate again with other constants of the cost model: how often the winner stays.

    The lane cycles, the area of processing elements, the HBM efficiency and the network bandwidth
    are each 20 % smaller and 20 % larger; the HBM and the arrays of a chip that states a range are
    at its ends instead. Ctrl-C keeps what is done.

    Example: phaze-opt study robust phaze-bert-large --json
    """
    from phaze_opt.spec.variations import variations_of
    from phaze_opt.whole_space.robustness import robustness_of_study, robustness_to_json_dict

    from .progress import steps_progress

    study = open_study(name, storage)
    steps = 1 + len(variations_of(study.resolved.base))
    with goes_on(f"phaze-opt study robust {name}"), steps_progress(steps) as show:
        robustness = robustness_of_study(study, workers=workers, on_variant=show)
    if as_json:
        print_json(robustness_to_json_dict(study, robustness))
        return
    from phaze_opt.report.robustness import robustness_tables

    print_table(robustness_tables(study, robustness))
