"""State-space and delta-net mixers: their sizes, and the work of their chunked kernels.

Pure data, without torch. Both mixers run a recurrence over the tokens of a sequence, whose state is
a matrix per head. Training computes it in chunks, so that nearly all of it is products:

* Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, section 6): scores of the tokens of a chunk, what each
  chunk adds to the state, the states passed on from chunk to chunk, and what they and the scores
  make of every token. The kernels, and what their backward computes again, are those of
  ``mamba_split_conv1d_scan_combined`` (state-spaces/mamba, ``ops/triton/ssd_combined.py``).
* Gated delta nets (Yang et al. 2024, arXiv 2412.06464, section 3.3): a token also takes out of the
  state what its key finds there, so that the tokens of a chunk hang on each other by a triangular
  matrix, which is inverted. The kernels are those of ``chunk_gated_delta_rule``
  (fla-org/flash-linear-attention, ``ops/gated_delta_rule/chunk.py``).

The last chunk counts as a whole one. A product that a backward repeats is no part of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phaze_opt.errors import InputError
from phaze_opt.limits import check_size
from phaze_opt.workload.config_checks import LARGEST_SIZE
from phaze_opt.workload.graph import Gemm, VectorWork

DELTA_CHUNK = 64
"""Tokens of a chunk of a delta net, which its kernels fix."""

SCAN_KERNELS = frozenset(
    {
        *("chunk_states", "pass_states", "chunk_scores", "chunk_scan"),
        *("chunk_states_gradient", "pass_states_backward", "chunk_inputs_gradient"),
        *("chunk_keys_gradient", "chunk_queries_gradient", "chunk_scores_gradient"),
        *("scores_gradient", "chunk_decay_gradient"),
    }
)
"""Kernels of a Mamba-2 scan with products or states, as `ScanShape` and captured graphs have them.

Those for the steps of the tokens are not among them: they are element-wise."""

_TRIANGLE = 16
"""Edge of the blocks by which a triangular matrix is inverted (``solve_tril``)."""


@dataclass(frozen=True)
class StateSpace:
    """Sizes of the Mamba-2 mixers of a model.

    Attributes
    ----------
    heads, head_elements
        Heads, and elements of each: their product is the inner width of a mixer.
    state
        Columns of the state of a head.
    groups
        Groups of heads that share what plays the part of keys and queries (B and C).
    kernel
        Tokens that the convolution before the scan sees.
    chunk
        Tokens of a chunk.
    norm
        Whether the result is normalised after its gate.
    convolution_bias, bias
        Whether the convolution, and the projections, have a bias.
    """

    heads: int
    head_elements: int
    state: int
    groups: int = 1
    kernel: int = 4
    chunk: int = 256
    norm: bool = True
    convolution_bias: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "head_elements", "state", "groups", "kernel", "chunk"):
            check_size(name, getattr(self, name), LARGEST_SIZE)
        if self.heads % self.groups:
            raise InputError(
                f"groups is {self.groups}, but it must divide the {self.heads} heads of the "
                "state-space mixer."
            )

    @property
    def inner(self) -> int:
        """Inner width."""
        return self.heads * self.head_elements


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of the gated delta nets of a model.

    Attributes
    ----------
    heads, head_elements
        Heads of values, and elements of each.
    key_heads, key_elements
        Heads of queries and keys, and elements of each.
    kernel
        Tokens that the convolution before the recurrence sees.
    """

    heads: int
    head_elements: int
    key_heads: int
    key_elements: int
    kernel: int = 4

    def __post_init__(self) -> None:
        for name in ("heads", "head_elements", "key_heads", "key_elements", "kernel"):
            check_size(name, getattr(self, name), LARGEST_SIZE)
        if self.heads % self.key_heads:
            raise InputError(
                f"key_heads is {self.key_heads}, but it must divide the {self.heads} heads of the "
                "delta net."
            )


class KernelWork(NamedTuple):
    """The work of one kernel.

    Attributes
    ----------
    gemms, vector
        Products, and vector work beside them.
    surplus_flops
        Those of the products that are no part of the model.
    apart
        Vector work on operands, for which the products wait: kernels with one stream of
        instructions do not overlap the two.
    """

    gemms: tuple[Gemm, ...] = ()
    vector: tuple[VectorWork, ...] = ()
    surplus_flops: int = 0
    apart: tuple[VectorWork, ...] = ()


def is_scan_kernel(operator_id: str) -> bool:
    """Whether an operator is one of `SCAN_KERNELS`, or a tile of one.

    Its decay, which runs before the products, is an operator of its own and none of them.
    """
    name = operator_id.partition(" ")[0].partition("+")[0]
    return name.rstrip("0123456789").removesuffix("_") in SCAN_KERNELS


def chunks_of(tokens: int, chunk: int) -> int:
    """Return the chunks of a sequence; the last one may be short of tokens."""
    return -(-tokens // chunk)


@dataclass(frozen=True)
class ScanShape:
    """Sizes of the scan of a Mamba-2 mixer on one device, and the work of its kernels.

    Attributes
    ----------
    batch, tokens
        Sequences, and tokens of each.
    heads, groups, width, state, chunk
        See `StateSpace`; ``width`` is that of a head.
    """

    batch: int
    tokens: int
    heads: int
    groups: int
    width: int
    state: int
    chunk: int

    @property
    def chunks(self) -> int:
        """Chunks of all sequences."""
        return self.batch * chunks_of(self.tokens, self.chunk)

    @property
    def _by_head(self) -> int:
        """Chunks of all heads."""
        return self.chunks * self.heads

    @property
    def _by_group(self) -> int:
        """Chunks of all groups."""
        return self.chunks * self.groups

    def _masked(self, times: int) -> tuple[VectorWork, ...]:
        """Return the decay between any two tokens of a chunk, and what it multiplies."""
        rows = self._by_head * self.chunk
        return (
            VectorWork("exponential", rows, self.chunk),
            *(VectorWork("multiply", rows, self.chunk) for _ in range(times)),
        )

    def _on_tokens(self, kind: str, times: int = 1) -> tuple[VectorWork, ...]:
        """Return work on every element of the tokens of all heads."""
        return (VectorWork(kind, self._by_head * self.chunk, self.width),) * times

    def _on_steps(self, kind: str, times: int = 1) -> tuple[VectorWork, ...]:
        """Return work on the step of every token and head."""
        return (VectorWork(kind, self.batch * self.tokens, self.heads),) * times

    def _along_chunks(self, times: int) -> tuple[VectorWork, ...]:
        """Return a recurrence over the states of a sequence: one element after another."""
        rows = self.batch * self.heads * self.width * self.state
        return (VectorWork("reduce", rows, self.chunks // self.batch),) * times

    # The forward.

    def step_sizes(self) -> KernelWork:
        """Return the steps (a softplus), their decay and its sums along a chunk."""
        transcendental = self._on_steps("exponential", 2)
        return KernelWork((), (*transcendental, *self._on_steps("multiply"), *self._sums()))

    def _sums(self) -> tuple[VectorWork, ...]:
        """Return sums along the chunks."""
        return self._on_steps("reduce")

    def chunk_states(self) -> KernelWork:
        """Return what every chunk adds to the state: inputs times scaled keys."""
        gemm = Gemm(m=self.width, n=self.state, k=self.chunk, batch=self._by_head)
        scaled = VectorWork("multiply", self._by_head * self.chunk, self.state)
        return KernelWork((gemm,), (scaled,))

    def pass_states(self) -> KernelWork:
        """Return the states before every chunk: each decays and takes in the next chunk."""
        return KernelWork((), self._along_chunks(2))

    def chunk_scores(self) -> KernelWork:
        """Return queries times keys, of every group."""
        gemm = Gemm(m=self.chunk, n=self.chunk, k=self.state, batch=self._by_group)
        return KernelWork((gemm,))

    def chunk_scan(self) -> KernelWork:
        """Return masked scores times inputs, and queries times states, summed in one place."""
        gemm = Gemm(m=self.chunk, n=self.width, k=self.chunk + self.state, batch=self._by_head)
        return KernelWork((gemm,), self._on_tokens("multiply", 2), apart=self._masked(2))

    # The backward.

    def chunk_states_gradient(self) -> KernelWork:
        """Return the gradient of the states before every chunk."""
        gemm = Gemm(m=self.width, n=self.state, k=self.chunk, batch=self._by_head)
        return KernelWork((gemm,), self._on_tokens("multiply"))

    def pass_states_backward(self) -> KernelWork:
        """Return the gradients of what chunks add to the state, and of their decay."""
        return KernelWork((), self._along_chunks(4))

    def chunk_inputs_gradient(self) -> KernelWork:
        """Return the gradient of the inputs, by the scores and by the states at once."""
        forward = self.chunk_scan()
        return forward._replace(vector=(*forward.vector, *self._on_tokens("reduce", 2)))

    def chunk_keys_gradient(self) -> KernelWork:
        """Return the gradient of keys by the states, summed over the heads of a group."""
        depth = self.width * self.heads // self.groups
        gemm = Gemm(m=self.chunk, n=self.state, k=depth, batch=self._by_group)
        summed = VectorWork("reduce", self._by_group * self.chunk, self.state)
        return KernelWork((gemm,), (*self._on_tokens("multiply"), summed))

    def chunk_queries_gradient(self) -> KernelWork:
        """Return the gradient of queries by the states, summed over the heads of a group."""
        return self.chunk_keys_gradient()

    def chunk_scores_gradient(self) -> KernelWork:
        """Return the gradient of the scores, summed over the heads of a group."""
        gemm = Gemm(m=self.chunk, n=self.chunk, k=self.width, batch=self._by_head)
        return KernelWork((gemm,), apart=self._masked(3))

    def scores_gradient(self) -> KernelWork:
        """Return the gradient of keys, or of queries, by the scores; it is added up."""
        gemm = Gemm(m=self.chunk, n=self.state, k=self.chunk, batch=self._by_group)
        return KernelWork((gemm,), (VectorWork("add", self._by_group * self.chunk, self.state),))

    def chunk_decay_gradient(self) -> KernelWork:
        """Return the gradient of the decay in a chunk, by the gradient of the scores once more."""
        again = self.chunk_scores_gradient()
        summed = VectorWork("reduce", self._by_head * self.chunk, self.chunk)
        flops = sum(gemm.flops for gemm in again.gemms)
        return again._replace(vector=(summed,), surplus_flops=flops)

    def step_sizes_backward(self) -> KernelWork:
        """Return the gradients of the steps, of their bias and of the decay."""
        again = self._on_steps("exponential", 2)
        return KernelWork(
            (), (*again, *self._on_steps("multiply", 4), *self._on_steps("reduce", 3))
        )


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of a gated delta rule on one device, and the work of its kernels.

    Along the chunks of a sequence each step needs the state that the one before leaves: there the
    chunks are part of the reduced edge of a product, whose steps follow each other.

    Attributes
    ----------
    batch, tokens
        Sequences, and tokens of each.
    heads
        Of values; every one has a query and a key of its own.
    key, value
        Elements of a head of the keys, and of the values.
    """

    batch: int
    tokens: int
    heads: int
    key: int
    value: int
    chunk: int = DELTA_CHUNK

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return chunks_of(self.tokens, self.chunk)

    @property
    def sequences(self) -> int:
        """Sequences of all heads."""
        return self.batch * self.heads

    def _in_chunks(self, m: int, n: int, k: int) -> Gemm:
        """Return a product of every chunk of all heads."""
        return Gemm(m=m, n=n, k=k, batch=self.sequences * self.chunks)

    def _along_chunks(self, m: int, n: int, k: int) -> Gemm:
        """Return a product of one chunk after another."""
        return Gemm(m=m, n=n, k=k * self.chunks, batch=self.sequences)

    def _on_chunks(self, kind: str, columns: int) -> VectorWork:
        """Return work on every token of all heads."""
        return VectorWork(kind, self.sequences * self.chunks * self.chunk, columns)

    def _masked(self) -> tuple[VectorWork, ...]:
        """Return the decay between any two tokens of a chunk, times what lies between them."""
        kinds = ("exponential", "multiply")
        return tuple([self._on_chunks(kind, self.chunk) for kind in kinds])

    # The forward.

    def delta_scores(self) -> KernelWork:
        """Return keys times scaled keys of a chunk."""
        gemm = self._in_chunks(self.chunk, self.chunk, self.key)
        scaled = self._on_chunks("multiply", self.key)
        return KernelWork((gemm,), (scaled,), apart=self._masked())

    def invert_triangles(self) -> KernelWork:
        """Return the inverse of the triangular matrices: rows within blocks, and blocks.

        A block d below the diagonal is a sum of d products, times one more.
        """
        blocks = max(1, self.chunk // _TRIANGLE)
        products = sum((blocks - below) * (below + 1) for below in range(1, blocks))
        within = VectorWork("reduce", self.sequences * self.chunks * self.chunk, _TRIANGLE**2)
        if not products:
            return KernelWork((), (within,))
        size = min(self.chunk, _TRIANGLE)
        batch = self.sequences * self.chunks * products
        gemm = Gemm(m=size, n=size, k=size, batch=batch)
        return KernelWork((gemm,), (within,), gemm.flops)

    def delta_pairs(self) -> KernelWork:
        """Return keys and values as the tokens of a chunk leave them to the state."""
        keys = self._in_chunks(self.chunk, self.key, self.chunk)
        values = self._in_chunks(self.chunk, self.value, self.chunk)
        scaled = [self._on_chunks("multiply", columns) for columns in (self.key, self.value)]
        return KernelWork((keys, values), tuple(scaled))

    def delta_states(self) -> KernelWork:
        """Return the states before every chunk, and the values that are new to them."""
        found = self._along_chunks(self.chunk, self.value, self.key)
        added = self._along_chunks(self.key, self.value, self.chunk)
        new = [self._on_chunks(kind, self.value) for kind in ("add", "multiply")]
        return KernelWork((found, added), tuple(new))

    def delta_output(self) -> KernelWork:
        """Return masked scores times new values, and queries times states, summed in one place."""
        scores = self._in_chunks(self.chunk, self.chunk, self.key)
        result = self._in_chunks(self.chunk, self.value, self.chunk + self.key)
        scaled = self._on_chunks("multiply", self.value)
        return KernelWork((scores, result), (scaled,), apart=self._masked())

    # The backward.

    def delta_values_gradient(self) -> KernelWork:
        """Return the gradient of new values by the scores, which are computed again."""
        scores = self._in_chunks(self.chunk, self.chunk, self.key)
        result = self._in_chunks(self.chunk, self.value, self.chunk)
        return KernelWork((scores, result), (), scores.flops, self._masked())

    def delta_states_gradient(self) -> KernelWork:
        """Return the gradients of the states, and of new values by them."""
        values = self._along_chunks(self.chunk, self.value, self.key)
        states = self._along_chunks(self.key, self.value, 2 * self.chunk)
        added = [self._on_chunks(kind, self.value) for kind in ("add", "multiply")]
        return KernelWork((values, states), tuple(added))

    def delta_operands_gradient(self) -> KernelWork:
        """Return the gradients of queries and keys, and of the keys left to the state."""
        scores = self._in_chunks(self.chunk, self.chunk, self.value)
        again = self._in_chunks(self.chunk, self.chunk, self.key)
        each = self._in_chunks(self.chunk, self.key, self.value + self.chunk)
        left = self._in_chunks(self.chunk, self.key, self.value)
        vector = self._on_chunks("multiply", self.key), self._on_chunks("reduce", self.chunk)
        gemms = scores, again, each, each, left
        return KernelWork(gemms, vector, again.flops, self._masked())

    def delta_pairs_gradient(self) -> KernelWork:
        """Return the gradients of keys, values and their scale through the triangular matrices."""
        chunk, key, value = self.chunk, self.key, self.value
        of_inverse = [self._in_chunks(chunk, chunk, size) for size in (key, value)]
        operands = [self._in_chunks(chunk, size, chunk) for size in (key, value)]
        through = [self._in_chunks(chunk, chunk, chunk)] * 2
        again = self._in_chunks(chunk, chunk, key)
        by_scores = [self._in_chunks(chunk, key, chunk)] * 2
        vector = [self._on_chunks("multiply", size) for size in (key, value)]
        surplus = again.flops + sum(gemm.flops for gemm in through)
        gemms = (*of_inverse, *operands, *through, again, *by_scores)
        summed = self._on_chunks("reduce", key)
        return KernelWork(gemms, (*vector, summed), surplus, self._masked())
