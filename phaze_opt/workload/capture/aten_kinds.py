"""Tables of ATen operators: views, kinds of vector work, products that cannot be sized."""

from __future__ import annotations

VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "_conj",
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "expand",
        "lift_fresh",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_real",
        "view_as_complex",
    )
)
"""Operators that move no data: their result is another view of the same memory."""

_KINDS_BY_NAME = {
    "add": "add sub rsub neg",
    "multiply": "mul div square reciprocal",
    "copy": "_to_copy clone copy stack constant_pad_nd slice_backward select_backward roll "
    "repeat flip contiguous slice_scatter select_scatter tril triu",
    "fill": "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones "
    "new_full new_empty new_empty_strided fill arange scalar_tensor eye",
    "compare": "eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or "
    "bitwise_not isnan isinf maximum minimum clamp clamp_min clamp_max",
    "select": "where masked_fill nll_loss_backward nll_loss2d_backward",
    "exponential": "exp log log1p expm1 log2 exp2 softplus",
    "rsqrt": "rsqrt sqrt",
    "power": "pow",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu": "relu leaky_relu hardtanh",
    "gelu": "gelu",
    "silu": "silu",
    "gelu_backward": "gelu_backward",
    "silu_backward": "silu_backward",
    "relu_backward": "threshold_backward leaky_relu_backward hardtanh_backward",
    "tanh_backward": "tanh_backward sigmoid_backward",
    "dropout": "native_dropout bernoulli rand rand_like",
    "dropout_backward": "native_dropout_backward",
    "rotary": "rotary",
    "gather": "gather index index_select nll_loss_forward nll_loss2d_forward",
    "scatter": "scatter scatter_add index_put _index_put_impl_ index_add masked_scatter "
    "_unsafe_index_put",
    "embedding": "embedding",
    "embedding_backward": "embedding_dense_backward",
}
_BY_ROW_NAMES = {
    "softmax": "_softmax _safe_softmax masked_softmax",
    "log_softmax": "_log_softmax",
    "softmax_backward": "_softmax_backward_data masked_softmax_backward",
    "log_softmax_backward": "_log_softmax_backward_data",
    "layer_norm": "native_layer_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_functional native_group_norm",
    "layer_norm_backward": "native_layer_norm_backward native_batch_norm_backward "
    "native_group_norm_backward",
    "rms_norm": "rms_norm _fused_rms_norm compiled_rms_norm unit_norm",
    "rms_norm_backward": "rms_norm_backward _fused_rms_norm_backward compiled_rms_norm_backward "
    "unit_norm_backward",
    "cross_entropy": "cross_entropy",
    "reduce": "rms_norm_weight_gradient sum mean amax amin max min argmax argmin prod var var_mean "
    "std cumsum decay_sums any all topk sort linalg_vector_norm max_pool2d_with_indices "
    "max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward",
}


def _by_operator(names: dict[str, str]) -> dict[str, str]:
    """Return the kind of each operator from the names of each kind."""
    return {name: kind for kind, listed in names.items() for name in listed.split()}


UNKNOWN_PRODUCTS = (
    "attention",
    "cdist",
    "fft",
    "gru",
    "linalg_solve",
    "lstm",
    "matmul",
    "mkldnn",
    "_mm",
    "bmm",
    "rnn",
    "trilinear",
)
"""Parts of names of operators that multiply matrices; without a handler they are refused."""

SHAPE_ONLY = {
    "_adaptive_avg_pool2d_backward": 1,
    "avg_pool2d_backward": 1,
    "max_pool2d_with_indices_backward": 1,
    "nll_loss2d_backward": 1,
    "nll_loss_backward": 1,
}
"""Operators that take a tensor for its shape and do not read it, and which argument it is."""

ELEMENTWISE = _by_operator(_KINDS_BY_NAME)
"""Kind of vector work by operator (without namespace), sized by the largest result."""

BY_ROW = _by_operator(_BY_ROW_NAMES)
"""Kind of vector work by operator, sized by the largest of results and operands."""
