"""The work of a fused attention core: its products, its vector work and its scores.

Pure data: capture takes the sizes from traced tensors, `estimate attention` from its options.
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.workload.graph import AttentionScores, Gemm, VectorWork


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention core on one device.

    Attributes
    ----------
    batch
        Samples.
    queries, keys
        Positions of the queries, and of the keys and values.
    heads, kv_heads
        Query heads, and key and value heads (fewer in grouped-query attention).
    head_dim
        Elements of one head.
    causal
        Whether a query sees only the keys up to its own position.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool

    @property
    def scores(self) -> AttentionScores:
        """The matrices of scores."""
        return AttentionScores(self.batch * self.heads, self.queries, self.keys, self.causal)

    @property
    def products(self) -> tuple[Gemm, Gemm]:
        """The products ``scores = Q·Kᵀ`` and ``context = P·V``.

        Query heads that share a key head are folded into the rows.
        """
        rows = self.queries * self.heads // self.kv_heads
        batch = self.batch * self.kv_heads
        scores = Gemm(m=rows, n=self.keys, k=self.head_dim, batch=batch)
        return scores, Gemm(m=rows, n=self.head_dim, k=self.keys, batch=batch)


def forward_work(
    shape: AttentionShape, *, dropout: bool = False, softcap: bool = False
) -> tuple[tuple[Gemm, ...], tuple[VectorWork, ...]]:
    """Return two products around a softmax (and soft cap and dropout) that stay on the chip."""
    rows, columns = shape.scores.heads * shape.queries, shape.keys
    vector = [VectorWork("softmax", rows, columns)]
    if softcap:
        vector.insert(0, VectorWork("tanh", rows, columns))
    if dropout:
        vector.append(VectorWork("dropout", rows, columns))
    return shape.products, tuple(vector)


def backward_work(
    shape: AttentionShape, *, dropout: bool = False, softcap: bool = False
) -> tuple[tuple[Gemm, ...], tuple[VectorWork, ...]]:
    """Return five products: scores, gradients of V, P, Q and K (Dao et al. 2022, algorithm 4).

    The probabilities come from the scores by one exponential with the saved row statistics; the
    softmax's backward needs the row sums of gradient times output.
    """
    scores, context = shape.products
    value_gradient = Gemm(m=scores.n, n=scores.k, k=scores.m, batch=scores.batch)
    rows, columns = shape.scores.heads * shape.queries, shape.keys
    vector = [
        VectorWork("reduce", rows, shape.head_dim),
        VectorWork("exponential", rows, columns),
        VectorWork("softmax_backward", rows, columns),
    ]
    if dropout:
        # The forward's mask is drawn again, and the gradient of the probabilities is masked.
        vector.insert(2, VectorWork("dropout", rows, columns))
        vector.insert(3, VectorWork("dropout_backward", rows, columns))
    if softcap:
        # The scores are bounded again, and their gradient goes through the bound.
        vector.insert(1, VectorWork("tanh", rows, columns))
        vector.append(VectorWork("tanh_backward", rows, columns))
    return (scores, value_gradient, scores, context, value_gradient), tuple(vector)
