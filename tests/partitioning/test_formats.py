import json
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.partitioning.dnn_format import read_dnn_partitioning
from phaze_opt.partitioning.phaze_format import read_phaze

DATA = Path(__file__).parent.parent / "data" / "placement"


def phaze() -> dict[str, Any]:
    """Return a file of two tensor degrees and three layers."""
    nodes = [
        {
            "id": identifier,
            "parameterSize": 8.0,
            "activationSize": 4,
            "optimalLatencyFw": 1.0,
            "optimalLatencyBw": 2.0,
            "isTensorParallelized": False,
        }
        for identifier in range(3)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "communicationCost": 2.0} for i in range(2)]
    return {
        "maxMemoryPerDevice": 1000.0,
        "maxDevices": 4,
        "bandwidth": 10.0,
        "mbsInBatch": 8,
        "activationRecomputation": False,
        "optimizerAlgorithm": "SGD",
        "nodes": {"1": nodes, "2": [dict(node) for node in nodes]},
        "edges": {"1": edges, "2": [dict(edge) for edge in edges]},
    }


def dnn_partitioning() -> dict[str, Any]:
    """Return a file of three operators."""
    nodes = [
        {
            "id": identifier,
            "supportedOnFpga": 1,
            "cpuLatency": 5.0,
            "fpgaLatency": 1.0,
            "isBackwardNode": 0,
            "colorClass": identifier,
            "size": 10.0,
        }
        for identifier in range(3)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(2)]
    return {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def encode(plain: object) -> bytes:
    """Return JSON."""
    return json.dumps(plain).encode()


def test_valid_files_are_read() -> None:
    """Both formats give their layers with their costs."""
    problem = read_phaze(encode(phaze()), "file")
    assert sorted(problem.nodes) == [1, 2]
    assert [node.id for node in problem.nodes[2]] == [0, 1, 2]
    split = read_dnn_partitioning(encode(dnn_partitioning()), "file")
    assert split.edges == ((0, 1), (1, 2))
    assert split.output_costs == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("nodes", "1", 1, "parameterSize"),
            None,
            r"nodes\['1'\] is .*missing .*`parameterSize` - at `\$\[1\]`",
        ),
        (("bandwidth",), None, "file is not valid: .*missing required field `bandwidth`"),
        (("nodes", "1", 1, "id"), 0, r"nodes\['1'\]\[1\]: the id 0 is there twice"),
        (("nodes", "2", 1, "id"), 7, r"nodes\['2'\] has other ids than the tensor degree 1: 1"),
        (("edges", "1", 1, "destId"), 9, r"edges\['1'\]\[1\]: destId is 9"),
        (("edges", "1", 1, "destId"), 0, "form a cycle: "),
        (("edges", "1", 0, "destId"), 0, "leads from node 0 to itself"),
        (
            ("nodes", "2", 0, "optimalLatencyFw"),
            -1.0,
            r"nodes\['2'\].* >= 0.0, got -1.* at `\$\[0\]\.optimalLatencyFw`",
        ),
        (
            ("edges", "2", 0, "communicationCost"),
            -1,
            r"edges\['2'\].* >= 0.0, got -1 - at `\$\[0\]\.comm",
        ),
        (("bandwidth",), 0, r"`float` > 0.0, got 0 - at `\$\.bandwidth`"),
        (("maxDevices",), 0, r"`int` >= 1, got 0 - at `\$\.maxDevices`"),
        (("maxDevices",), 2**63, "`int` <= 10000000, got 9223372036854775808 - at"),
        (("maxDevices",), 10**400, "`int` <= 10000000, got 1000"),
        (("maxMemoryPerDevice",), 10**400, r"out of range, got 1000.* at `\$\.maxM"),
        (("maxDevices",), 1.5, "Expected `int`, got 1.5 - at"),
        (("mbsInBatch",), "many", "Expected `int`, got 'many' - at"),
        (("optimizerAlgorithm",), "LAMB", r"SGD\|Adam.*, got 'LAMB' - at"),
        (("activationRecomputation",), "yes", r"Expected `bool \| int`, got 'yes' - at"),
        (("nodes", "1"), [], r"nodes\['1'\] is not valid: .*of length >= 1, got \[\]"),
        (("nodes",), {}, "nodes is empty"),
        (("nodes", "1"), 3, r"nodes\['1'\] is not valid: Expected `array`, got 3"),
        (("nodes", "zero"), [], "the tensor degree 'zero'"),
        (("edges", "1"), None, "edges lacks the tensor degree '1'"),
        (("edges", "4"), [], "edges has the tensor degree '4', which nodes lacks"),
    ],
)
def test_malformed_phaze_files_are_refused(
    path: tuple[str | int, ...], value: object, message: str
) -> None:
    """Every defect is named with its place in the file."""
    with pytest.raises(InputError, match=message):
        read_phaze(encode(changed(phaze(), path, value)), "file")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("nodes", 1, "fpgaLatency"), None, r"missing .* `fpgaLatency` - at `\$\.nodes\[1\]`"),
        (("nodes", 1, "id"), 0, r"nodes\[1\]: the id 0 is there twice"),
        (("edges", 1, "destId"), 9, r"edges\[1\]: destId is 9, but there is no such node"),
        (("edges", 1, "destId"), 0, "form a cycle: "),
        (("nodes", 1, "size"), -1, r"`float` >= 0.0, got -1 - at `\$\.nodes\[1\]\.size`"),
        (("maxFPGAs",), -1, r"`int` >= 0, got -1 - at `\$\.maxFPGAs`"),
        (("nodes",), [], r"of length >= 1, got \[\] - at `\$\.nodes`"),
        (("edges", 0), 5, r"Expected `object`, got 5 - at `\$\.edges\[0\]`"),
    ],
)
def test_malformed_dnn_partitioning_files_are_refused(
    path: tuple[str | int, ...], value: object, message: str
) -> None:
    """Every defect is named with its place in the file."""
    with pytest.raises(InputError, match=message):
        read_dnn_partitioning(encode(changed(dnn_partitioning(), path, value)), "file")


def changed(plain: Any, path: tuple[str | int, ...], value: object) -> Any:
    """Return a document with one value replaced, or removed where it is None."""
    place = plain
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return plain


@pytest.mark.parametrize("read", [read_phaze, read_dnn_partitioning])
@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"NaN", b"[" * 100_000])
def test_what_is_not_json_is_refused(read: Any, data: bytes) -> None:
    """Broken JSON, and JSON other than an object, are refused."""
    with pytest.raises(InputError):
        read(data, "file")


def test_order_does_not_depend_on_ids() -> None:
    """Renamed layers in another order of the file give the same chain."""
    plain = phaze()
    names = {0: 40, 1: 7, 2: 19}
    renamed = json.loads(json.dumps(plain))
    for tensor_degree in ("1", "2"):
        for node in renamed["nodes"][tensor_degree]:
            node["id"] = names[node["id"]]
        for edge in renamed["edges"][tensor_degree]:
            edge["sourceId"], edge["destId"] = names[edge["sourceId"]], names[edge["destId"]]
        renamed["nodes"][tensor_degree].reverse()
    problem = read_phaze(encode(renamed), "file")
    assert [node.id for node in problem.nodes[1]] == [40, 7, 19]


def test_published_instances_are_read() -> None:
    """All instances that the project keeps are valid."""
    for path in sorted((DATA / "phaze").glob("*.json")):
        assert read_phaze(path.read_bytes(), path.name).nodes
    for path in sorted((DATA / "dnn-partitioning").glob("*.json")):
        assert read_dnn_partitioning(path.read_bytes(), path.name).nodes
