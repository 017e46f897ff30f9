"""Loading by name: the models, their tensor degrees, refusals, and the cache on disk."""

import json
import logging
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from phaze_opt.choices import FusionMode
from phaze_opt.errors import InputError, NotFoundError, PhazeError
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.training import Training
from phaze_opt.workload import zoo
from phaze_opt.workload.cache import CaptureKey, read_variant, write_variant
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import BytesByRecompute, OperatorGraph, Workload
from phaze_opt.workload.workload_file import write_workload

TINY = "gpt:layers=2,hidden=16,heads=4,sequence=8,vocab=50"
OLD_FILES = Path(__file__).parent.parent / "data" / "schema_4.zip"
FUSED = "llama:layers=1,hidden=16,heads=4,kv_heads=2,ffn=24,sequence=8,vocab=50"


def _load(model: str = TINY, **options: Any) -> Workload:
    return zoo.load_workload(model, **options)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test an empty cache folder of its own."""
    monkeypatch.setenv("PHAZE_CACHE", str(tmp_path))
    return tmp_path / "workloads"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, str, str]:
    """Return a captured workload with the name and the text of its file in the cache."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHAZE_CACHE", str(folder))
        workload = _load()
        assert _load() == workload
    (path,) = (folder / "workloads").iterdir()
    return workload, path.name, path.read_text()


@pytest.mark.parametrize(
    ("model", "layers", "sequence", "tensor_degrees"),
    [
        ("bert-large", 24, 512, (1, 2, 4, 8)),
        ("gpt2-xl", 48, 1024, (1,)),  # 25 heads
        ("opt-350m", 24, 2048, (1, 2, 4, 8)),
        ("llama2-7b", 32, 4096, (1, 2, 4, 8)),
        ("llama3-8b", 32, 8192, (1, 2, 4, 8)),
        ("llama3-70b", 80, 8192, (1, 2, 4, 8)),
        ("megatron-bert", 24, 512, (1, 2, 4, 8)),
        ("megatron-gpt2-2.5b", 54, 1024, (1, 2, 4)),  # 20 heads
        ("megatron-gpt2-8.3b", 72, 1024, (1, 2, 4, 8)),
        ("gpt3-175b", 96, 2048, (1, 2, 4, 8)),
    ],
)
def test_models_have_their_shape(
    model: str, layers: int, sequence: int, tensor_degrees: tuple[int, ...]
) -> None:
    """Every named model has its layers, sequence and the tensor degrees that divide it."""
    config = zoo.model_config(model)
    assert (config.layers, config.sequence) == (layers, sequence)
    assert zoo.tensor_degrees(model) == tensor_degrees
    assert model in zoo.model_names()


def test_every_combination_is_captured() -> None:
    """The variants are all tensor degrees times all microbatches, in order, once each."""
    workload = _load(tensor_parallel=(2, 1, 2), microbatch=(4, 1))
    assert [(v.tensor_parallel, v.microbatch) for v in workload.variants] == [
        (1, 1),
        (1, 4),
        (2, 1),
        (2, 4),
    ]


def test_tensor_degree_one_is_the_same_with_sequence_parallelism() -> None:
    """Sequence parallelism begins at tensor degree 2; `variants_for` finds 1 either way."""
    workload = _load(tensor_parallel=(1, 2), sequence_parallel=True)
    assert [v.sequence_parallel for v in workload.variants] == [False, True]
    assert [v.tensor_parallel for v in workload.variants_for(1, True)] == [1, 2]


def test_sequence_overrides() -> None:
    """Another sequence changes the work; a learned position table grows if it must."""
    workload = _load(sequence=16)
    assert workload.sequence == 16
    assert workload.parameters == _load().parameters + 8 * 16
    assert _load("bert-large", sequence=128).parameters == _load("bert-large").parameters


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "bert-larg"}, "Did you mean 'bert-large'"),  # a typo
        ({"model": ""}, "Unknown model"),  # nothing
        ({"model": "gpt2-xl", "tensor_parallel": (2,)}, "divisors 1, 5, 25"),  # 25 heads
        ({"model": "megatron-gpt2-2.5b", "tensor_parallel": (8,)}, "divisors 1, 2, 4, 5, 10, 20"),
        ({"tensor_parallel": (0,)}, "cannot be split over 0"),  # no devices
        *(
            ({name: ()}, f"{name} is empty. At least one")
            for name in (
                *("tensor_parallel", "microbatch", "context_parallel"),
                *("expert_tensor_parallel", "expert_capacity"),
            )
        ),
        ({"expert_capacity": (-1.0,)}, "expert_capacity is -1.0, but it must be 0, or above it"),
        ({"expert_capacity": (1e300,)}, "at most 64"),  # absurd
        ({"microbatch": (0,)}, "microbatch is 0"),  # empty
        ({"microbatch": (10**9,)}, "microbatch is 1000000000"),  # absurd
        ({"sequence": 0}, "sequence is 0"),  # empty
        ({"sequence": 10**9}, "sequence is 1000000000"),  # absurd
        ({"sequence": 2**24, "microbatch": (2**16,)}, "too large"),  # 2**66 scores
        (
            {"sequence": 7, "tensor_parallel": (2,), "sequence_parallel": True},
            "not a multiple of 2",
        ),
    ],
)
def test_refusals_say_what_is_allowed(options: dict[str, Any], words: str) -> None:
    """What cannot be captured is refused in one sentence, before anything is."""
    with pytest.raises(InputError) as caught:
        _load(**{"model": TINY, **options})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_second_load_reads_the_same_without_torch(cache: Path) -> None:
    """A cached workload is equal to the captured one, and loading it does not import torch."""
    first = _load()
    assert len(list(cache.iterdir())) == 1
    program = (
        "import sys\n"
        "from phaze_opt.workload.zoo import load_workload\n"
        f"print(load_workload({TINY!r}).parameters)\n"
        "print('torch' in sys.modules, 'networkx' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == [str(first.parameters), "False", "False"], run.stderr
    assert _load() == first


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],  # cut short
        lambda text: "",  # emptied
        lambda text: "[1, 2]",  # something else
        lambda text: text.replace('"capture_version":', '"capture_version":9'),  # other version
        lambda text: text.replace('"hidden":16', '"hidden":32'),  # another model's
    ],
)
def test_damaged_cache_is_captured_again(
    cache: Path, kept: tuple[Workload, str, str], damage: Callable[[str], str]
) -> None:
    """A broken, foreign or outdated file is replaced, not believed."""
    first, name, whole = kept
    cache.mkdir()
    path = cache / name
    path.write_text(damage(whole))
    assert _load() == first
    assert path.read_text() == whole


def test_cache_tells_variants_apart(cache: Path) -> None:
    """Tensor degree, microbatch, sequence parallelism and shape each have a file of their own."""
    _load(tensor_parallel=(1, 2))
    _load(microbatch=(2,))
    _load(tensor_parallel=(2,), sequence_parallel=True)
    _load(sequence=16)
    assert len(list(cache.iterdir())) == 5
    assert not list(cache.glob("*.part"))


def test_unwritable_cache_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the cache cannot be written, loading works and warns."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("PHAZE_CACHE", str(blocked))
    with caplog.at_level(logging.WARNING, logger="phaze_opt"):
        assert _load().sequence == 8
    assert "not kept" in caplog.text


def test_a_key_finds_what_was_written(cache: Path) -> None:
    """What is written under a key is read back under it and under no other."""
    key = CaptureKey(zoo.model_config(TINY), 1, 1, False)
    assert read_variant(key) is None
    _load()
    cached = read_variant(key)
    assert cached is not None
    other = replace(key, microbatch=2)
    assert read_variant(other) is None
    write_variant(replace(cached, key=other))
    assert read_variant(other) is not None


def test_captured_file_is_a_model(tmp_path: Path) -> None:
    """A workload written to a file is a model, for what it was captured at."""
    path = tmp_path / "tiny.json"
    workload = _load(tensor_parallel=(1, 2), microbatch=(1, 2))
    write_workload(workload, path)
    assert zoo.tensor_degrees(str(path)) == (1, 2)
    again = _load(str(path), tensor_parallel=(2,), microbatch=(2,))
    assert again.variants == workload.variants[-1:]
    with pytest.raises(InputError, match="captured at tensor degree 4"):
        _load(str(path), tensor_parallel=(4,))
    with pytest.raises(InputError, match="cannot be changed to 16"):
        _load(str(path), sequence=16)


def test_missing_file_is_not_found() -> None:
    """A path that does not exist has its own exit code."""
    with pytest.raises(NotFoundError):
        _load("missing.json")


def test_file_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is not there is one sentence."""
    with pytest.raises(PhazeError, match="cannot be written"):
        write_workload(_load(), tmp_path / "none" / "tiny.json")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["schema_version"], 99, "has schema version 99"),  # from the future
        (["variants"], [], "length >= 1, got []"),  # nothing in it
        (["sequence"], "8", "not valid"),  # a wrong type
        (["variants", 0, "nodes", 0, 1], 7, "layer that is not there"),
        (["variants", 0, "nodes", 0, 0], "head", "same name"),
        (["variants", 0, "edges", 0, 0], 3, "order of the nodes"),  # backwards
        (["variants", 0, "layers", 1, "parameters"], -1, ">= 0, got -1"),
        (["variants", 0, "layers", 1, "forward", "operators", 0, "id"], "bmm", "same id"),
        (["variants", 0, "layers", 1, "forward", "tensors", 0, "elements"], -1, ">= 0, got -1"),
        (["variants", 0, "layers", 1, "forward", "tensors", 0, "dtype"], "fp7", "Unknown dtype"),
        (["variants", 0, "layers", 1, "forward", "tensors", -1, "writers", 0, 0], 99, "not exist"),
        (["variants", 0, "layers", 1, "forward", "tensors", 4, "writers", 0, 0], 9, "before it is"),
        (
            ["variants", 0, "layers", 1, "forward", "operators", 0, "vector", 0, "kind"],
            "magic",
            "unknown kind 'magic'",
        ),
        (
            ["variants", 0, "layers", 1, "forward", "operators", 1, "gemms", 0, "m"],
            0,
            ">= 1, got 0",
        ),
        (["variants", 0, "surprise"], 1, "surprise"),  # an unknown key
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, path: list[str | int], value: object, words: str
) -> None:
    """A file that contradicts itself is refused with a sentence."""
    file = tmp_path / "broken.json"
    write_workload(_load(), file)
    plain = json.loads(file.read_text())
    target = plain
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    file.write_text(json.dumps(plain))
    with pytest.raises(InputError) as caught:
        _load(str(file))
    assert words in str(caught.value)


def _old_file(name: str, version: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write a file of the fourth schema that says that it is of an older one; return its JSON."""
    with zipfile.ZipFile(OLD_FILES) as archive:
        plain = json.loads(archive.read(f"{name}.json"))
    plain["schema_version"] = version
    file = folder / f"{name}-{version}.json"
    file.write_text(json.dumps(plain))
    return file, plain


@pytest.mark.parametrize(("name", "model"), [("tiny", TINY), ("fused", FUSED)])
def test_a_file_of_the_fourth_schema_is_the_same_model(
    name: str, model: str, tmp_path: Path
) -> None:
    """It had the bytes of what operators read and write, and only the tensors that they share."""
    file, _ = _old_file(name, 4, tmp_path)
    for old, new in zip(_load(str(file)).variants, _load(model).variants, strict=False):
        for one, other in zip(old.layers, new.layers, strict=True):
            pairs = [(one.forward, other.forward), (one.backward, other.backward)]
            for before, after in [*pairs, (one.selective_recompute, other.selective_recompute)]:
                for mode in get_args(FusionMode):
                    assert_same_traffic(fuse(before, mode), fuse(after, mode))
            nothing = OperatorGraph()
            graphs: dict[str, Any] = {
                "forward": nothing,
                "backward": nothing,
                "selective_recompute": nothing,
            }
            assert replace(one, **graphs) == replace(other, **graphs)
    chip, cluster = load_accelerator("tpuv4-lanes"), load_cluster("flat-4GiB", 2)
    for overlap in ("none", "all"):
        training = Training(2, overlap=overlap)
        found = [evaluate(_load(one), chip, cluster, training) for one in (str(file), model)]
        assert found[0].time_per_batch_s == found[1].time_per_batch_s
        assert found[0].energy_by_level_j == found[1].energy_by_level_j


def assert_same_traffic(one: OperatorGraph, other: OperatorGraph) -> None:
    """Check that two graphs have the same operators, which move the same bytes."""
    assert one.operators == other.operators and one.edges == other.edges
    assert (one.read_bytes, one.write_bytes) == (other.read_bytes, other.write_bytes)
    kept = [[replace(each, tensor=0) for each in kept_tensors(graph)] for graph in (one, other)]
    assert kept[0] == kept[1]


def test_a_file_of_the_third_schema_has_the_same_edges(tmp_path: Path) -> None:
    """It had no tensors: what an operator hands over is one tensor, whoever reads it."""
    file, plain = _old_file("tiny", 3, tmp_path)
    for variant in plain["variants"]:
        for layer in variant["layers"]:
            for graph in ("forward", "backward", "selective_recompute"):
                del layer[graph]["tensors"]
    file.write_text(json.dumps(plain))
    for old, new in zip(
        _load(str(file)).variants[0].layers, _load().variants[0].layers, strict=True
    ):
        for one, other in ((old.forward, new.forward), (old.backward, new.backward)):
            assert one.operators == other.operators and one.edges == other.edges
            assert (one.read_bytes, one.write_bytes) == (other.read_bytes, other.write_bytes)


def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its one working set per layer gets what recompute brings back; all else is as it was."""
    workload = _load(str(_old_file("tiny", 4, tmp_path)[0]))
    file, plain = _old_file("tiny", 1, tmp_path)
    for variant in plain["variants"]:
        for layer in variant["layers"]:
            del layer["fused_transient_bytes"]
            layer["transient_bytes"] = layer["transient_bytes"]["none"]
    file.write_text(json.dumps(plain))
    for old, new in zip(
        _load(str(file)).variants[0].layers, workload.variants[0].layers, strict=True
    ):
        transient, stash = new.transient_bytes.none, new.stash_bytes
        selective, full = transient + stash.none - stash.selective, transient + stash.none
        sizes = BytesByRecompute(transient, selective, full)
        assert (old.transient_bytes, old.fused_transient_bytes) == (sizes, sizes)
        assert old.forward == new.forward and old.stash_bytes == new.stash_bytes


def _without_scores(name: str, folder: Path) -> tuple[Path, Workload]:
    """Write a model as a file of the second schema; return the model as it was, too."""
    workload = _load(str(_old_file(name, 4, folder)[0]))
    file, plain = _old_file(name, 2, folder)
    for variant in plain["variants"]:
        for layer in variant["layers"]:
            for graph in ("forward", "backward", "selective_recompute"):
                for operator in layer[graph]["operators"]:
                    operator.pop("attention", None)
    file.write_text(json.dumps(plain))
    return file, workload


def test_scores_without_their_products_are_refused(tmp_path: Path) -> None:
    """A fused core takes a product at least, from which the estimator has the size of heads."""
    file = tmp_path / "one.json"
    write_workload(_load(FUSED), file)
    plain = json.loads(file.read_text())
    operators = [
        operator
        for layer in plain["variants"][0]["layers"]
        for operator in layer["forward"]["operators"]
        if operator.get("attention")
    ]
    assert operators
    operators[0]["gemms"] = []
    file.write_text(json.dumps(plain))
    with pytest.raises(InputError, match="attention scores without a product"):
        _load(str(file))


def test_a_file_of_the_second_schema_with_eager_attention_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without fused attention there is nothing to add, and nothing to say."""
    file, workload = _without_scores("tiny", tmp_path)
    caplog.clear()
    assert _load(str(file)).variants == workload.variants
    assert not caplog.records


def test_fused_attention_of_the_second_schema_is_counted_in_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file does not say whether a mask was causal; a warning says that."""
    file, workload = _without_scores("fused", tmp_path)
    caplog.clear()
    old = _load(str(file))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "does not say whether its attention is causal" in warning
    found = 0
    for before, after in zip(workload.variants[0].layers, old.variants[0].layers, strict=True):
        for graph in ("forward", "backward", "selective_recompute"):
            pairs = zip(
                getattr(before, graph).operators, getattr(after, graph).operators, strict=True
            )
            for one, other in pairs:
                if one.attention is None:
                    assert one == other
                else:
                    assert one.attention.causal
                    assert other == replace(one, attention=replace(one.attention, causal=False))
                    found += 1
    assert found == 2


@pytest.mark.parametrize(
    "text",
    [
        *('{"schema_version": 2}', '{"schema_version": 2, "variants": [{"layers": [3]}]}'),
        *("", "{", "[]", "{}", "null", '{"schema_version": "1"}', "[" * 9999),
        *('{"schema_version": 1}', '{"schema_version": 1, "variants": [{"layers": [3]}]}'),
    ],
)
def test_what_is_not_a_workload_is_refused(tmp_path: Path, text: str) -> None:
    """Something else than a captured workload is refused with a sentence."""
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(InputError, match=str(file)):
        _load(str(file))
