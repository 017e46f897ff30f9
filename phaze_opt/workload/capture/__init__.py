"""From a torch module to operator graphs; everything that needs torch is here.

The room takes a module on the meta device (of a named transformer, or the user's own) and gives the
`phaze_opt.workload.graph.WorkloadVariant` of one microbatch: AOTAutograd traces forward and
backward without memory, the trace is cut into layers, and each layer becomes operators with their
traffic, stash and transient memory.

Modules
-------
``transformer``          a named model: its distinct layers, `transformer.capture_transformer`
``assembly``             what a model is put together from: layers, places, who reads whom
``towers``               models of two stacks: speech that text attends to, images beside text
``images_in_text``       a tower of images before a language model
``tiled_images``         images in tiles, which blocks of the language model attend to
``diffusion``            diffusion transformers: blocks of two streams and of a joint one
``video``                those of a video, whose blocks attend to a text
``blocks``, ``ends``     a transformer's modules: blocks; embeddings and heads
``attention``            the attentions and norms of blocks, latent attention among them
``hybrid_blocks``        blocks of a pattern of sub-layers
``state_space``          the Mamba-2 mixer of a block; ``delta_net``: the gated delta net
``sparse_attention``     latent attention with an indexer, and its kernels
``compressed_attention`` blocks that attend to the latest and to compressed tokens, and kernels
``hyper_connections``    residual streams that are mixed, and their kernels
``feed_forward``         the feed-forward network of a block
``experts``              the router and the experts of a block that has some
``tensor_parallel``      split linear layers and loss, with their collectives in both directions
``kernels``              fused kernels that ATen lacks: attention, rotary positions, norm, loss
``recurrence_kernels``   kernels of state-space and delta-net mixers
``expert_kernels``       routing, grouped products and activation of experts
``adapter_kernels``      products of low-rank adapters
``user_module``          the user's own module: `user_module.capture`
``module_trace``         one microbatch of a whole module, traced and cut
``loops``                scans of a user's module as loops of their body
``repeated_layers``      a deep module's equal layers, traced once
``parallel_plan``        a user's module split over a tensor-parallel group by a plan
``own_experts``          routed experts of a user's module, declared in a plan
``found_experts``        those that stacked weights and a top-k show without one
``batch_of_inputs``      whether the inputs of a factory have the microbatch that was asked for
``failures``             why a module cannot be captured, at which line of the user
``layer_cuts``           layers of a module found, marked in a trace, and cut out of it
``aot``                  the traced forward and backward graphs
``aten``, ``aten_kinds`` the work of one ATen operator: products, vector work, collective
``aten_fused``           the work of fused kernels: attention, experts
``aten_streams``         that of compressed attention and residual streams
``aten_node``            a node's name and tensors, and what its work is
``tensors``              the memory that nodes read and write; views share it
``layer``                a `phaze_opt.workload.graph.Layer` from the traced nodes of one layer
``selective_recompute``  tensors that selective recompute keeps, operators that run again
``working_set``          the largest memory that is alive while nodes run

Formula -> function
-------------------
parameters of a model                    -> `transformer.count_parameters`
GEMM of an ATen product                  -> `aten.work_of`
products of a convolution                -> `aten._convolution`, `aten._convolution_backward`
products of fused attention, backward    -> `aten_fused._flash_attention_backward`
kernels of a chunked scan, a delta rule  -> `aten_fused._chunked`
products of experts                      -> `aten_fused._grouped_product`, and `..._weight`
parameters that work on a token          -> `transformer.count_parameters` (``active``)
stash without recompute                  -> `layer.TracedModel.layer` (``stash_bytes``)
stash under selective recompute          -> `selective_recompute.selective_recompute`
transient memory (peak of live tensors)  -> `working_set.peak_bytes`, fused `working_set.fuse_steps`
compulsory HBM bytes of an operator      -> `layer._read_elements`, `layer._written_elements`
collectives of a block                   -> `tensor_parallel.sum_over_group`
collectives of an adapter                -> `tensor_parallel.ColumnAdapter`, `RowAdapter`
what has no weight gradient              -> ``requires_grad`` in `layer`, `module_trace`
activations between layers               -> `layer.TracedModel.outputs`
"""
