"""Small transformers and operator graphs for property tests."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.graph import VECTOR_KINDS, Gemm, Operator, OperatorGraph, VectorWork
from tests.workload.graphs import Moved, graph_of


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    """Draw a small transformer of any family that tensor degrees 1, 2 and 4 divide."""
    heads = draw(st.sampled_from([4, 8]))
    fields: dict[str, Any] = {
        "layers": draw(st.integers(1, 3)),
        "hidden": heads * draw(st.sampled_from([2, 4, 6])),
        "heads": heads,
        "sequence": 4 * draw(st.integers(2, 8)),
        "vocabulary": draw(st.integers(50, 300)),
    }
    if draw(st.booleans()):
        fields |= LLAMA | {"kv_heads": 4, "feed_forward": 4 * draw(st.integers(5, 20))}
    else:
        fields |= {
            "norm_position": draw(st.sampled_from(["pre", "post"])),
            "activation": draw(st.sampled_from(["gelu", "relu"])),
            "dropout": draw(st.sampled_from([0.0, 0.1])),
            "embedding_size": draw(st.sampled_from([0, 6])),
        }
        if draw(st.booleans()):
            fields |= {
                "head": "masked_language_model",
                "causal": False,
                "token_types": 2,
                "embedding_norm": True,
            }
    config = TransformerConfig(**fields)
    return replace(config, attention=draw(st.sampled_from(["eager", "flash"])))


@st.composite
def operator_graphs(draw: st.DrawFn) -> OperatorGraph:
    """Draw a graph whose operators read at least what their producers hand them."""
    count = draw(st.integers(1, 12))
    outside = [draw(st.integers(0, 50)) for _ in range(count)]
    results = [draw(st.integers(1, 100)) for _ in range(count)]
    edges = [
        (source, destination, draw(st.integers(1, results[source])))
        for destination in range(count)
        for source in range(destination)
        if draw(st.integers(0, 3)) == 0
    ]
    operators = []
    for index in range(count):
        kinds = draw(st.lists(st.sampled_from(VECTOR_KINDS[:24]), max_size=2))
        product = (Gemm(4, 5, 6),) * draw(st.integers(0, 2))
        operators.append(
            Moved(
                Operator(
                    f"n{index}",
                    gemms=product,
                    vector=tuple(VectorWork(kind, 3, 4) for kind in kinds),
                ),
                outside[index] + sum(size for _, to, size in edges if to == index),
                results[index],
                draw(st.sampled_from([0, results[index]])),
            )
        )
    return graph_of(operators, edges)
