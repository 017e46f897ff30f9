"""Laws of captured layers: graphs, traffic, stash and memory."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.tensor_parallel import DTYPE
from phaze_opt.workload.capture.transformer import capture_transformer
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import VECTOR_KINDS, Layer, OperatorGraph, VectorWork
from phaze_opt.workload.zoo import load_workload
from tests.workload.graphs import outliving_bytes
from tests.workload.strategies import transformers

BATCH, ROWS, WIDTH = 2, 6, 8


def _meta(*shape: int, gradient: bool = True) -> torch.Tensor:
    return torch.empty(shape, dtype=DTYPE, device="meta", requires_grad=gradient)


def _capture(module: nn.Module, *inputs: torch.Tensor) -> Layer:
    return capture_layer("layer", module.to(device="meta", dtype=DTYPE), inputs)


def _graphs(
    config: TransformerConfig, tensor_degree: int, sequence_parallel: bool
) -> list[OperatorGraph]:
    variant = capture_transformer(
        config, tensor_parallel=tensor_degree, microbatch=2, sequence_parallel=sequence_parallel
    )
    return [g for layer in variant.layers for g in (layer.forward, layer.backward)]


@settings(max_examples=3, deadline=None)
@given(transformers())
def test_graphs_are_sound(config: TransformerConfig) -> None:
    """Every operator is used, has work and known kinds, and reads what its edges bring."""
    for graph in _graphs(config, 2, True):
        brought = [0] * len(graph.operators)
        used = {source for source, _, _ in graph.edges}
        for source, destination, size in graph.edges:
            assert 0 <= source < destination < len(graph.operators)
            assert 0 < size <= graph.write_bytes[source]
            brought[destination] += size
        assert len({op.id for op in graph.operators}) == len(graph.operators)
        for index, operator in enumerate(graph.operators):
            assert outliving_bytes(graph)[index] or index in used
            assert operator.gemms or operator.vector or operator.collective
            assert {work.kind for work in operator.vector} <= set(VECTOR_KINDS)
            assert graph.read_bytes[index] >= brought[index]
            assert graph.write_bytes[index] > 0
        for tensor in graph.tensors:
            assert sum(elements for _, elements in tensor.writers) in (tensor.elements, 0)
            assert tensor.readers or tensor.outlives


@settings(max_examples=1, deadline=None)
@given(transformers())
def test_capture_is_deterministic(config: TransformerConfig) -> None:
    """Capturing twice gives the same data, bit for bit."""
    assert _graphs(config, 2, False) == _graphs(config, 2, False)


@pytest.mark.parametrize("model", ["bert-large", "gpt2-xl", "opt-350m", "llama2-7b"])
def test_no_operator_is_of_an_unnamed_kind(model: str) -> None:
    """The zoo's graphs have only kinds with a cost of their own."""
    for layer in load_workload(model).variants[0].layers:
        for graph in (layer.forward, layer.backward):
            kinds = {work.kind for operator in graph.operators for work in operator.vector}
            assert "elementwise" not in kinds


def test_linear_layer_by_hand() -> None:
    """A linear layer has one product forward, two and a sum backward, and keeps its input."""
    layer = _capture(nn.Linear(WIDTH, 3), _meta(BATCH, WIDTH))
    (product,) = layer.forward.operators
    assert (product.gemms[0].m, product.gemms[0].n, product.gemms[0].k) == (BATCH, 3, WIDTH)
    assert layer.forward.read_bytes == (2 * (BATCH * WIDTH + 3 * WIDTH + 3),)
    assert layer.forward.write_bytes == (2 * BATCH * 3,) == tuple(outliving_bytes(layer.forward))
    assert sorted(len(op.gemms) for op in layer.backward.operators) == [0, 1, 1]
    assert layer.stash_bytes.none == layer.stash_bytes.full == 2 * BATCH * WIDTH
    assert layer.parameters == 3 * WIDTH + 3
    assert layer.output_bytes == 2 * BATCH * 3


def test_dead_random_operators_are_dropped() -> None:
    """The forward's dropout, which tracing repeats in the backward, is not run again."""
    layer = _capture(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)), _meta(BATCH, WIDTH))
    kinds = [work.kind for op in layer.backward.operators for work in op.vector]
    assert kinds.count("dropout") == 0
    assert kinds.count("dropout_backward") == 1


def test_dropout_keeps_one_byte_per_element() -> None:
    """A dropout mask is stashed as one byte per element, and nothing else."""
    layer = _capture(nn.Dropout(0.5), _meta(BATCH, WIDTH))
    assert layer.stash_bytes.none == BATCH * WIDTH


def test_views_are_not_operators() -> None:
    """Reshaping and transposing cost nothing; the stash holds their base once."""

    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(WIDTH, BATCH).t() * x.view(BATCH, WIDTH)

    layer = _capture(Square(), _meta(BATCH, WIDTH))
    assert [work.kind for op in layer.forward.operators for work in op.vector] == ["multiply"]
    assert layer.forward.read_bytes[0] == 2 * BATCH * WIDTH
    assert layer.stash_bytes.none == 2 * BATCH * WIDTH


def test_partial_reads_count_what_is_read() -> None:
    """An operator that takes a slice of a tensor reads the slice, not the whole tensor."""

    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x[:, : WIDTH // 2])

    layer = _capture(Half(), _meta(BATCH, WIDTH))
    assert layer.forward.read_bytes[0] == 2 * BATCH * WIDTH // 2


def test_convolution_is_an_implicit_product() -> None:
    """A grouped convolution has the products of its unfolded input, one per direction."""
    groups, filters, window = 2, 6, 9
    convolution = nn.Conv2d(4, filters, 3, padding=1, groups=groups)
    layer = _capture(convolution, _meta(BATCH, 4, 5, 5))
    (forward,) = (gemm for op in layer.forward.operators for gemm in op.gemms)
    assert (forward.m, forward.n, forward.k) == (BATCH * 25, filters // groups, 2 * window)
    assert forward.batch == groups
    assert layer.backward.flops == 2 * layer.forward.flops
    assert len(layer.backward.operators) == 3


def test_transposed_convolution_goes_by_its_input() -> None:
    """A transposed convolution multiplies every input position by the whole filter."""
    layer = _capture(nn.ConvTranspose2d(4, 6, 3, stride=2), _meta(BATCH, 4, 5, 5))
    (forward,) = (gemm for op in layer.forward.operators for gemm in op.gemms)
    assert (forward.m, forward.n, forward.k) == (BATCH * 25, 6 * 9, 4)
    assert layer.backward.flops == 2 * layer.forward.flops


def test_matrix_times_vector_is_a_product() -> None:
    """A product with a vector has one column."""

    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    layer = _capture(Score(), _meta(BATCH, WIDTH))
    assert layer.forward.flops == 2 * BATCH * WIDTH


def test_products_of_unknown_size_are_refused() -> None:
    """An operator that multiplies matrices in a way we do not know is named, not ignored."""

    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points = nn.Parameter(torch.empty(BATCH, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x, self.points)

    with pytest.raises(InputError, match="cdist"):
        _capture(Distances(), _meta(BATCH, WIDTH))


def test_embedding_reads_rows_not_the_table() -> None:
    """A look-up reads only the rows it returns; its gradient is the whole table."""
    tokens = torch.empty((BATCH, ROWS), dtype=torch.int64, device="meta")
    layer = capture_layer("layer", nn.Embedding(1000, WIDTH, device="meta", dtype=DTYPE), [tokens])
    (look_up,) = layer.forward.operators
    assert look_up.vector == (VectorWork("embedding", BATCH * ROWS, WIDTH),)
    assert layer.forward.read_bytes[0] == 2 * BATCH * ROWS * WIDTH + 8 * BATCH * ROWS
    assert layer.backward.write_bytes[0] == 2 * 1000 * WIDTH


def test_a_shape_is_not_read() -> None:
    """The backward of pooling reads gradient and indices, not the input it has the shape of."""
    layer = _capture(nn.MaxPool2d(2), _meta(BATCH, 4, 4, 4))
    assert layer.backward.read_bytes == (BATCH * 4 * 4 * (2 + 8),)


def test_concatenation_is_a_copy_per_operand() -> None:
    """The parts of a concatenation are written one by one, so that each can be fused."""

    class Join(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.tanh(x), torch.relu(x)], dim=-1) * 2

    layer = _capture(Join(), _meta(BATCH, WIDTH))
    pairs = zip(layer.forward.operators, layer.forward.write_bytes, strict=True)
    copied = [written for op, written in pairs if op.vector[0].kind == "copy"]
    assert copied == [2 * BATCH * WIDTH] * 2
    assert layer.forward.read_bytes[-1] == 2 * BATCH * 2 * WIDTH


def test_two_attentions_are_two_cores() -> None:
    """Selective recompute repeats both attentions of a decoder block, not what lies between."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.between = nn.Linear(WIDTH, WIDTH)

        def attend(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            return torch.softmax(q.bmm(kv.transpose(1, 2)), -1).bmm(kv)

        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            return self.attend(self.between(self.attend(x, x)), memory)

    layer = _capture(Decoder(), _meta(BATCH, ROWS, WIDTH), _meta(BATCH, ROWS, WIDTH))
    names = [operator.id for operator in layer.selective_recompute.operators]
    assert names == ["bmm", "softmax", "bmm_1", "bmm_2", "softmax_1", "bmm_3"]
    scores = 2 * BATCH * ROWS * ROWS
    assert layer.stash_bytes.none - layer.stash_bytes.selective == 2 * scores


def test_transient_memory_by_hand() -> None:
    """The working set of two activations in a row is two tensors: one dies when the other is."""

    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x + 1) + 2) + 3

    layer = _capture(Chain(), _meta(BATCH, WIDTH))
    assert layer.stash_bytes.none == 0
    assert layer.transient_bytes.none == 2 * (2 * BATCH * WIDTH)
    # Fused they are one kernel, which reads its input and writes its result.
    assert layer.fused_transient_bytes.none == 2 * (2 * BATCH * WIDTH)
