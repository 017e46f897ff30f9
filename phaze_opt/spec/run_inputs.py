"""The inputs of the evaluation of one workload of a study on a design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import check_training, training_on
from phaze_opt.network.cluster import Cluster
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.constraints import with_memory_margin
from phaze_opt.spec.designs import Design, training_of
from phaze_opt.spec.freezing import captures
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training


@dataclass(frozen=True)
class RunInputs:
    """The inputs of the evaluation of one workload on a design.

    Attributes
    ----------
    capture
        Index into the captured workloads of the study.
    chosen
        Values of the solved options.
    """

    capture: int
    accelerator: Accelerator
    cluster: Cluster
    training: Training
    chosen: Mapping[str, Scalar]


def run_inputs(study: ResolvedStudy, run: int, design: Design) -> list[RunInputs]:
    """Return the inputs of a workload for every combination of the solved options.

    Raises
    ------
    InputError
        If the options exclude each other in every combination, or the chip has no rate for them.
    """
    spec = study.spec
    chip = with_memory_margin(design.accelerator, spec.constraints)
    inputs: list[RunInputs] = []
    refused: InputError | None = None
    for chosen in spec.space.solved_options():
        options = {**design.options, **chosen}
        try:
            training = training_on(chip, training_of(options, spec.runs[run].global_batch))
            check_training(chip, training)
        except InputError as error:
            refused = error
            continue
        capture = _capture_of(spec, run, options)
        inputs.append(RunInputs(capture, chip, design.cluster, training, chosen))
    if refused is not None and not inputs:
        raise refused
    return inputs


def _capture_of(spec: StudySpec, run: int, options: Mapping[str, Scalar | None]) -> int:
    """Return the index of the captured workload with the attention of the options."""
    attention = options["attention"] if spec.space.values_of("attention") else None
    for index, (captured_run, captured_attention) in enumerate(captures(spec)):
        if captured_run == run and attention in (None, captured_attention):
            return index
    raise InputError(f"attention is {attention!r}, which the study has not captured.")
