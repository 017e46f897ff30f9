import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from phaze_opt.cli.cluster import app as cluster_app
from phaze_opt.cli.place import place
from typer.testing import CliRunner

from phaze_opt.errors import InfeasibleError, InputError, NotFoundError
from tests.partitioning.test_formats import dnn_partitioning

DATA = Path(__file__).parent.parent / "data" / "placement"
PHAZE = DATA / "phaze"
GRAPH = DATA / "dnn-partitioning" / "latency-layers-bert24_inference.json"

app = typer.Typer()
app.command("place")(place)
app.add_typer(cluster_app, name="cluster")


def run(*arguments: object) -> Any:
    """Run a command and return the JSON that it prints."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_published_cost() -> None:
    """The published cost gives the published time and every layer once."""
    answer = run("place", PHAZE / "004.json", "--format", "phaze", "--cost", "phaze")
    assert answer["time_per_batch_s"] == pytest.approx(0.19517074137325818, rel=1e-9)
    assert (answer["pipeline"], answer["data"], answer["tensor"]) == (4, 256, 1)
    assert answer["status"] == "optimal"
    assert sorted(layer for stage in answer["stages"] for layer in stage["layers"]) == list(
        range(-1, 24)
    )


def test_true_cost_is_the_default() -> None:
    """The true cost counts what the published one leaves out; its parts sum to the time."""
    answer = run("place", PHAZE / "004.json", "--format", "phaze", "--devices", "64")
    assert sum(answer["time_breakdown_s"].values()) == pytest.approx(answer["time_per_batch_s"])
    assert answer["pipeline"] * answer["data"] * answer["tensor"] <= 64
    assert answer["status"] == "optimal"
    assert (answer["bound_s"], answer["gap"]) == (answer["time_per_batch_s"], 0.0)


def test_branching_graphs_have_a_true_cost() -> None:
    """A graph with branches is placed under both costs."""
    for cost in ("true", "phaze"):
        answer = run("place", PHAZE / "090.json", "--format", "phaze", "--cost", cost)
        assert answer["time_per_batch_s"] > 0


def test_graph_splits(tmp_path: Path) -> None:
    """Contiguous and free splits and latency have the keys of the contract."""
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(dnn_partitioning()))
    for options, key in (
        ([], "max_load"),
        (["--splits", "any"], "max_load"),
        (["--objective", "latency"], "latency"),
        (["--objective", "latency", "--splits", "contiguous"], "latency"),
    ):
        answer = run("place", file, "--format", "dnn-partitioning", *options)
        assert set(answer) == {"status", key, "splits", "bound", "gap", "solve_s"}
        assert answer["status"] == "optimal"
        nodes = sorted(node for split in answer["splits"] for node in split["nodes"])
        assert nodes == [0, 1, 2]


def renamed(plain: Any, seed: int) -> Any:
    """Return a file whose ids are permuted and whose lists are in another order."""
    random = Random(seed)
    tables = plain["nodes"].values() if isinstance(plain["nodes"], dict) else [plain["nodes"]]
    links = plain["edges"].values() if isinstance(plain["edges"], dict) else [plain["edges"]]
    ids = [node["id"] for node in next(iter(tables))]
    new = dict(zip(ids, random.sample(range(1000), len(ids)), strict=True))
    for nodes in tables:
        for node in nodes:
            node["id"] = new[node["id"]]
        random.shuffle(nodes)
    for edges in links:
        for edge in edges:
            edge["sourceId"], edge["destId"] = new[edge["sourceId"]], new[edge["destId"]]
        random.shuffle(edges)
    return plain


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("file", "options", "key"),
    [
        (PHAZE / "090.json", ["--format", "phaze", "--cost", "phaze"], "time_per_batch_s"),
        (PHAZE / "090.json", ["--format", "phaze"], "time_per_batch_s"),
        (PHAZE / "028.json", ["--format", "phaze"], "time_per_batch_s"),
        (GRAPH, ["--format", "dnn-partitioning"], "max_load"),
    ],
)
def test_ids_do_not_matter(
    tmp_path: Path, file: Path, options: list[str], key: str, seed: int
) -> None:
    """Permuted ids and another order of the file change nothing."""
    other = tmp_path / "renamed.json"
    other.write_text(json.dumps(renamed(json.loads(file.read_bytes()), seed)))
    expected = run("place", file, *options)[key]
    assert run("place", other, *options)[key] == pytest.approx(expected, rel=1e-12)


def test_infeasible_still_prints_json() -> None:
    """An infeasible file leaves its reason on stdout and raises the error of exit code 5."""
    with pytest.raises(InfeasibleError):
        CliRunner().invoke(
            app,
            ["place", str(PHAZE / "064.json"), "--format", "phaze", "--cost", "phaze"],
            catch_exceptions=False,
        )
    result = CliRunner().invoke(
        app, ["place", str(PHAZE / "064.json"), "--format", "phaze", "--cost", "phaze"]
    )
    printed = json.loads(result.stdout)
    assert printed["status"] == "infeasible"
    assert printed["time_per_batch_s"] is None
    assert "more than" in printed["reason"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["none.json", "--format", "phaze"], NotFoundError),  # no such file
        ([PHAZE / "004.json", "--format", "dnn-partitioning"], InputError),  # another format
        ([PHAZE / "004.json", "--format", "phaze", "--splits", "any"], InputError),
        ([GRAPH, "--format", "dnn-partitioning", "--cost", "true"], InputError),
        (
            [GRAPH, "--format", "dnn-partitioning", "--objective", "latency", "--splits", "any"],
            InputError,
        ),
    ],
)
def test_mistakes(arguments: list[object], error: type[Exception]) -> None:
    """Missing files, wrong formats and options of the other format are refused."""
    with pytest.raises(error):
        CliRunner().invoke(app, ["place", *map(str, arguments)], catch_exceptions=False)


def test_cluster_commands() -> None:
    """Clusters can be listed and looked at."""
    names = [row["name"] for row in run("cluster", "ls", "--json")]
    assert "dgx-a100" in names
    shown = run("cluster", "show", "dgx-a100", "--json")
    assert shown["levels"][0]["group_size"] == 8
    assert shown["source"]
    table = CliRunner().invoke(app, ["cluster", "show", "dgx-a100"])
    assert "InfiniBand" in table.stdout
