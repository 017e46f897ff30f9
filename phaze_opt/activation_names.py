"""Names of activations that a layer keeps, and the policies of frameworks that name them.

A policy says what a layer keeps for its backward; all else that the backward reads runs again.
Which tensors of a captured layer a name means, is in `phaze_opt.workload.named_tensors`.

Those of MaxText are its ``remat_policy`` (AI-Hypercomputer/maxtext e591f30c, ``src/maxtext/layers/
decoders.py``, ``get_remat_policy`` and ``minimal_policy``; ``src/maxtext/utils/maxtext_utils.py``,
``get_save_and_offload_names``): the input of a layer stays always, and of the named tensors those
that the backward needs. Its query, key and value are named where attention reads them, after rotary
positions. The scripts of TPU v5p take ``minimal``, those of v5e 128B ``qkv_proj_offloaded``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ActivationName = str
"""A name of `phaze_opt.workload.named_tensors.NamedTensors`."""

_DOTS = ("query_key_value", "out_proj", "mlpwi", "mlpwo")


class ActivationPolicy(NamedTuple):
    """What a layer keeps for its backward.

    Attributes
    ----------
    kept
        Names of tensors that stay on the device.
    offloaded
        Names of those that wait on the host.
    keeps_unread
        Whether a named tensor is kept also where the backward does not need it.
    """

    kept: tuple[ActivationName, ...] = ()
    offloaded: tuple[ActivationName, ...] = ()
    keeps_unread: bool = False


RECOMPUTE_POLICIES: Mapping[str, ActivationPolicy] = {
    "minimal": ActivationPolicy(_DOTS),
    "minimal_with_context": ActivationPolicy((*_DOTS, "context")),
    "minimal_offloaded": ActivationPolicy(offloaded=_DOTS),
    "save_dot_with_context_except_mlp": ActivationPolicy(
        ("query_key_value", "context", "out_proj")
    ),
    "save_dot_except_mlpwi": ActivationPolicy(("query_key_value", "out_proj", "mlpwo")),
    "save_dot_except_mlp": ActivationPolicy(("query_key_value", "out_proj")),
    "save_qkv_proj": ActivationPolicy(("query_key_value",)),
    "qkv_proj_offloaded": ActivationPolicy(offloaded=("query_key_value",)),
    "save_out_proj": ActivationPolicy(("out_proj",)),
    # torchtitan's per-operator selective checkpointing (``selective_ac_option = "op"``): attention,
    # sums over the tensor-parallel group and every second product; see
    # `phaze_opt.workload.capture.selective_recompute`.
    "torch-op": ActivationPolicy(("context", "sums", "second_products"), keeps_unread=True),
}
"""Policies by the names that their frameworks give them."""

OFFLOAD_PARTS: Mapping[str, tuple[ActivationName, ...]] = {
    "layer": (),
    "attn_norm": ("layer_input",),
    "qkv_linear": ("qkv_input",),
    "core_attn": ("query_key_value",),
    "attn_proj": ("attention_result",),
    "mlp_norm": ("residual",),
    "expert_fc1": ("expert_rows",),
    "moe_act": ("expert_hidden",),
}
"""Parts of a layer whose inputs may wait on the host, by the names of those.

``layer`` is all that a layer keeps (Megatron-Core's ``--cpu-offloading-num-layers``), the others
are modules of its ``--offload-modules``, whose inputs go (NVIDIA/Megatron-LM,
``docs/source/api-guide/fine_grained_activation_offloading.md``).
"""
