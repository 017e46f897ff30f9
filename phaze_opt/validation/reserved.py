"""What PyTorch's allocator holds beyond the tensors that are alive: what it reserved is measured.

It keeps what is freed, hands out the smallest free piece that is large enough, and moves nothing.
It gives pieces back only when the memory is full, so that they are no part of what a run needs.
Where the loss has its peak, two kinds of them are of no use (a test runs the allocator over a
forward and a backward):

* the logits in the working precision, freed when they have been cast: what is asked for after them
  is as many elements in fp32;
* where every operator allocates its result, the temporaries of a block's forward: they lie between
  tensors that stay, each smaller than the logits. Compiled blocks have few.
"""

from __future__ import annotations

from phaze_opt.choices import Launch
from phaze_opt.precision import ELEMENT_BYTES, Dtype
from phaze_opt.workload.graph import WorkloadVariant

_WORKING: Dtype = "bf16"


def kept_bytes(variant: WorkloadVariant, launch: Launch) -> int:
    """Return what the allocator keeps at the peak of a run of PyTorch without using it.

    Parameters
    ----------
    variant
        Its last layer ends in the loss.
    launch
        How kernels are started; see `phaze_opt.training.Training`.
    """
    made = [
        tensor.elements
        for tensor in variant.layers[-1].forward.tensors
        if tensor.writers and tensor.dtype == _WORKING
    ]
    logits_bytes = ELEMENT_BYTES[_WORKING] * max(made, default=0)
    if launch != "eager":
        return logits_bytes
    most = max(range(len(variant.counts)), key=variant.counts.__getitem__)
    return logits_bytes + variant.layers[most].transient_bytes.none
