"""Predicted against measured exchanges of tokens: DeepEP's kernels, and all-to-alls of NCCL.

The rows and who measured them are in ``data/expert_exchanges.csv`` and ``data/all_to_all.csv``,
each with its ``.toml``. The network stands where the accelerator does in tables of operators.
Constants of DeepEP are fitted to other rows of one node of H100 and B200, those of HybridEP to its
rates on one node (``data/exchange_rates.csv``); nothing is fitted to rows of the B300 or of several
nodes. Those of eight nodes, of which a token goes to four, stand apart: what four multiprocessors
send, and combines of up to 4,096 tokens, reach the rates of four nodes; whatever is faster or lasts
longer sends 17 GB/s through ports of 50, while DeepEP's authors publish 45 (51 with the share that
stays) for eight nodes with the same adapters. That cluster's network seems to hold it up, which no
constant here knows.
"""

from __future__ import annotations

from typing import cast

from phaze_opt.choices import Dispatcher
from phaze_opt.codec import data_rows, data_table
from phaze_opt.network.estimate import estimate_collective
from phaze_opt.network.presets import load_cluster
from phaze_opt.network.token_exchange import destinations, exchange_cost
from phaze_opt.precision import PrecisionName
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.experts import token_bytes
from phaze_opt.workload.graph import TokenExchange

_DEVICES_OF_NODE = 8
_MOST_NODES = 4
"""That a token goes to: the default of DeepEP's ``test_internode.py``, which the collector runs."""


def validate_expert_exchanges() -> list[ValidationTable]:
    """Predict every measured dispatch and combine, and every all-to-all.

    Returns
    -------
    tables
        One per chip on one node, of 2 and 4 nodes, of 8, of rates by multiprocessors per dispatcher
        and number of nodes, and of all-to-alls per network.
    """
    return [*_exchanges(), *_rates(), *_all_to_alls()]


def _exchanges() -> list[ValidationTable]:
    """Predict dispatches and combines."""
    provenance = data_table("validation", "expert_exchanges.toml")
    by_name: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in data_rows("validation", "expert_exchanges.csv"):
        chip, nodes = row["chip"].partition("_")[0], int(row["nodes"])
        where = chip if nodes == 1 else "8 nodes" if nodes == 8 else "2 and 4 nodes"
        name = f"dispatch and combine, {where}"
        by_name.setdefault((name, provenance["cluster"][row["chip"]]), []).append(row)
    return [
        ValidationTable(
            name,
            cluster,
            0.0,
            provenance["measured_by"],
            tuple([_exchange(row, cluster) for row in rows]),
        )
        for (name, cluster), rows in by_name.items()
    ]


def _exchange(row: dict[str, str], cluster: str) -> ValidationRow:
    """Estimate one dispatch or combine."""
    nodes, hidden, is_dispatch = int(row["nodes"]), int(row["hidden"]), row["kind"] == "dispatch"
    devices = _DEVICES_OF_NODE * nodes
    exchange = TokenExchange(
        tokens=int(row["tokens"]),
        top_k=int(row["top_k"]),
        experts=int(row["experts"]),
        devices=devices,
        row_bytes=token_bytes(hidden, "fp8-block" if is_dispatch else "bf16"),
        dispatcher="deepep",
        plans=False,
        groups=nodes,
        top_groups=min(nodes, _MOST_NODES),
    )
    multiprocessors = int(row["multiprocessors"])
    cost = exchange_cost(
        exchange,
        load_cluster(cluster, devices),
        is_dispatch=is_dispatch,
        multiprocessors=multiprocessors,
    )
    case = (
        f"{row['kind']} of {exchange.tokens} tokens of {hidden} to {exchange.top_k} of "
        f"{exchange.experts} experts on {devices}, {multiprocessors} multiprocessors"
    )
    return ValidationRow(case, float(row["latency_us"]) * 1e-6, cost.time_s)


def _rates() -> list[ValidationTable]:
    """Predict exchanges of which the rate is known, not the time."""
    run = data_table("validation", "exchange_rates.toml")
    tokens, top_k = int(run["tokens"]), int(run["top_k"])
    by_name: dict[str, list[ValidationRow]] = {}
    for row in data_rows("validation", "exchange_rates.csv"):
        nodes, experts, taken = (int(row[c]) for c in ("nodes", "experts", "multiprocessors"))
        devices, is_dispatch = _DEVICES_OF_NODE * nodes, row["kind"] == "dispatch"
        row_bytes = token_bytes(int(row["hidden"]), cast(PrecisionName, row["precision"]))
        dispatcher = cast(Dispatcher, row["dispatcher"])
        exchange = TokenExchange(tokens, top_k, experts, devices, row_bytes, dispatcher, False)
        cost = exchange_cost(
            exchange,
            load_cluster(run["cluster"], devices),
            is_dispatch=is_dispatch,
            multiprocessors=taken,
        )
        # Copies for each device of one node, and for each of several nodes.
        copies = destinations(devices if nodes == 1 else nodes, experts, top_k)
        measured_s = tokens * row_bytes * copies / (float(row["gb_per_s"]) * 1e9)
        case = (
            f"{row['kind']} of tokens of {row['hidden']} in {row['precision']} to {top_k} of "
            f"{experts} experts on {devices}, {taken} multiprocessors"
        )
        where = "one node" if nodes == 1 else f"{nodes} nodes"
        name = f"{row['dispatcher']} by multiprocessors, {where}"
        by_name.setdefault(name, []).append(ValidationRow(case, measured_s, cost.time_s))
    by = run["measured_by"]
    return [
        ValidationTable(name, run["cluster"], 0.0, by, tuple(rows))
        for name, rows in by_name.items()
    ]


def _all_to_alls() -> list[ValidationTable]:
    """Predict all-to-alls."""
    provenance = data_table("validation", "all_to_all.toml")
    by_cluster: dict[str, list[ValidationRow]] = {}
    for row in data_rows("validation", "all_to_all.csv"):
        cluster, devices, size_bytes = row["cluster"], int(row["devices"]), int(row["bytes"])
        network = load_cluster(cluster, devices)
        estimate = estimate_collective("all_to_all", size_bytes, devices, network)
        case = f"all_to_all of {size_bytes / 2**20:g} MiB on {devices}"
        measured_s = float(row["latency_ms"]) * 1e-3
        by_cluster.setdefault(cluster, []).append(
            ValidationRow(case, measured_s, estimate.latency_s, source=row["source"])
        )
    return [
        ValidationTable("all-to-all from 1 MB", name, 0.0, provenance["measured_by"], tuple(rows))
        for name, rows in by_cluster.items()
    ]
