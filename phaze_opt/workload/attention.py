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
    window
        How many of these it sees; 0 for all.
    value_dim
        Elements of one head of the values and of the result; 0 for as many as of queries and keys.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int = 0
    value_dim: int = 0

    @property
    def width(self) -> int:
        """Elements of one head of the values."""
        return self.value_dim or self.head_dim

    @property
    def seen_keys(self) -> int:
        """Keys that a query sees at most."""
        return min(self.window, self.keys) if self.window else self.keys

    @property
    def scores(self) -> AttentionScores:
        """The matrices of scores."""
        return AttentionScores(self.batch * self.heads, self.queries, self.seen_keys, self.causal)

    @property
    def products(self) -> tuple[Gemm, Gemm]:
        """The products ``scores = Q·Kᵀ`` and ``context = P·V``.

        Query heads that share a key head are folded into the rows.
        """
        rows = self.queries * self.heads // self.kv_heads
        batch = self.batch * self.kv_heads
        scores = Gemm(m=rows, n=self.seen_keys, k=self.head_dim, batch=batch)
        return scores, Gemm(m=rows, n=self.width, k=self.seen_keys, batch=batch)


def forward_work(
    shape: AttentionShape, *, dropout: bool = False, softcap: bool = False
) -> tuple[tuple[Gemm, ...], tuple[VectorWork, ...]]:
    """Return two products around a softmax (and soft cap and dropout) that stay on the chip."""
    rows, columns = shape.scores.heads * shape.queries, shape.seen_keys
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
    key_gradient = Gemm(m=scores.n, n=scores.k, k=scores.m, batch=scores.batch)
    value_gradient = Gemm(m=scores.n, n=context.n, k=scores.m, batch=scores.batch)
    probabilities = Gemm(m=scores.m, n=scores.n, k=context.n, batch=scores.batch)
    query_gradient = Gemm(m=scores.m, n=scores.k, k=scores.n, batch=scores.batch)
    rows, columns = shape.scores.heads * shape.queries, shape.seen_keys
    vector = [
        VectorWork("reduce", rows, shape.width),
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
    return (scores, value_gradient, probabilities, query_gradient, key_gradient), tuple(vector)
