"""All cases, in the order of the table."""

from __future__ import annotations

from tests.torture import (
    arguments,
    bundles,
    compiled_code,
    connections,
    databases,
    disks,
    hardware_files,
    kills,
    options,
    paths,
    problems,
    sizes,
    specs,
    stalls,
    workloads,
)
from tests.torture.case import Case

CASES: tuple[Case, ...] = (
    kills.SQLITE,
    kills.POSTGRESQL,
    stalls.STALLS,
    stalls.PARENTS,
    stalls.CLOCKS,
    connections.CUTS_SQLITE,
    connections.CUTS_POSTGRESQL,
    connections.RESTARTS,
    disks.FULL,
    disks.READ_ONLY,
    disks.VANISHED,
    databases.FILES,
    databases.ROWS,
    compiled_code.CASE,
    specs.CASE,
    workloads.CASE,
    problems.CASE,
    sizes.CASE,
    hardware_files.ACCELERATORS,
    hardware_files.CLUSTERS,
    bundles.CASE,
    paths.CASE,
    arguments.CASE,
    arguments.PROCESSES,
    options.CASE,
)
