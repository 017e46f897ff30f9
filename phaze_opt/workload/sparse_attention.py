"""Latent attention to the few keys that an indexer chooses for every query (DeepSeek-V3.2).

The indexer scores every pair of a query and an earlier key, ``I = Σ_j w_j · ReLU(q_j · k)`` over
its heads, and the attention takes the ``top_k`` keys of the highest scores. All heads of a query
share keys and values, which are the short vectors themselves (the products that make keys and
values of them are applied to queries and results instead), so with ``S`` tokens and
``k = min(top_k, S)``

    forward    2·S·S·H·d (indexer) + 2·S·k·h·(K + V) (attention)
    backward   2·S·k·h·(3·K + 2·V) (attention) + 2·S·k·h·K (what the indexer learns from: the
               probabilities, summed over heads) + 3·2·S·k·H·d (indexer)

FLOPs per sample, where the indexer has ``H`` heads of ``d`` elements, the attention ``h`` heads
whose keys have ``K`` elements (rank and rotary part) and values ``V`` (rank). As everywhere these
count keys in full; a causal mask leaves ``S·(S + 1)/2`` pairs for the indexer and
``Σ_t min(k, t)`` for the attention. The indexer learns by itself, from the chosen keys only (sparse
training stage): its inputs get no gradient from it.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", sections 1 and 2. Pure data, without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.config_checks import refuse_outside
from phaze_opt.workload.graph import AttentionScores, Gemm, VectorWork

Work = tuple[tuple[Gemm, ...], tuple[VectorWork, ...], AttentionScores]
"""Products, vector work and scores of a kernel."""


@dataclass(frozen=True)
class Indexer:
    """What chooses the keys of a query.

    Attributes
    ----------
    heads, width
        Heads of its queries, and elements of each; its key has one head.
    top_k
        Keys that it chooses for every query.
    """

    heads: int
    width: int
    top_k: int

    def __post_init__(self) -> None:
        for name in ("heads", "width", "top_k"):
            refuse_outside(f"{name} of an indexer", getattr(self, name), 1)


def index_shape(batch: int, tokens: int, heads: int, width: int, keys: int) -> AttentionShape:
    """Return the sizes of an indexer's scores, all pairs under a causal mask.

    Where a key stands for several tokens, these see the same keys: they count as more heads.
    """
    return AttentionShape(batch, keys, keys, heads * max(1, tokens // keys), 1, width, causal=True)


def chosen_shape(shape: AttentionShape, keys: int) -> AttentionShape:
    """Return the sizes where every query sees ``keys`` keys, or the fewer up to its own position.

    As many as under a window of so many tokens.
    """
    return replace(shape, window=keys if keys < shape.keys else 0)


def index_work(shape: AttentionShape) -> Work:
    """Return an indexer's forward: one product, a weighted sum over heads, the highest scores."""
    kinds = "relu", "multiply"
    vector = (*(_of_scores(kind, shape) for kind in kinds), _of_tokens("reduce", shape))
    return shape.products[:1], vector, shape.scores


def target_work(shape: AttentionShape) -> Work:
    """Return the probabilities of the attention, summed over its heads: what an indexer learns.

    The probabilities come from the scores by one exponential with the saved row statistics.
    """
    rows, columns = shape.scores.heads * shape.queries, shape.seen_keys
    vector = VectorWork("exponential", rows, columns), _of_tokens("reduce", shape)
    return shape.products[:1], vector, shape.scores


def index_backward_work(shape: AttentionShape) -> Work:
    """Return the gradients of an indexer's queries, key and weights, from the chosen keys.

    Its scores are computed again, normalised, and compared with what they should be.
    """
    scores = shape.products[0]
    query_gradient = Gemm(m=scores.m, n=scores.k, k=scores.n, batch=scores.batch)
    key_gradient = Gemm(m=scores.n, n=scores.k, k=scores.m, batch=scores.batch)
    vector = (
        *(_of_scores(kind, shape) for kind in ("relu", "multiply")),
        *(_of_tokens(kind, shape) for kind in ("softmax", "add")),
        *(_of_scores(kind, shape) for kind in ("relu_backward", "multiply")),
    )
    return (scores, query_gradient, key_gradient), vector, shape.scores


def _of_scores(kind: str, shape: AttentionShape) -> VectorWork:
    """Return vector work on the scores of all heads that the mask leaves, over the rows alike."""
    rows = shape.scores.heads * shape.queries
    return VectorWork(kind, rows, -(-shape.scores.visible // rows))


def _of_tokens(kind: str, shape: AttentionShape) -> VectorWork:
    """Return vector work on what is summed over heads: the visible pairs of queries and keys."""
    return VectorWork(kind, shape.batch * shape.queries, _of_scores(kind, shape).columns)
