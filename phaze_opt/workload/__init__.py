"""The model that is trained, as operator graphs of its layers.

The room takes the name of a model (or a torch module) and gives a `graph.Workload`: the distinct
layers with their forward and backward operators, parameters, stash and transient memory, for each
tensor degree and microbatch. Only ``capture/`` imports torch.

Modules
-------
``zoo``            a model by name: `zoo.load_workload`, `zoo.model_names`, `zoo.tensor_degrees`
``config``         the shape of a transformer; ``config_checks`` refuses shapes that cannot be
``experts``        mixtures of experts and latent attention: shapes, and grouped products
``recurrences``    state-space and delta-net mixers: sizes, and work of their chunked kernels
``expert_parallel``  a captured model whose routed experts are shared out among devices
``context_parallel``  a captured model whose sequences are shared among devices
``sparse_attention``  attention to keys that an indexer chooses: shapes, and work of its kernels
``compressed_attention``  attention to the latest and to compressed tokens, and residual streams
``projector``      what brings the results of a tower of images into a text
``diffusion``      diffusion transformers: what they have beside the shape of their blocks
``trained``        what of a model is trained: frozen parts, and low-rank adapters
``model_string``   the shape from ``gpt:...``, ``llama:...`` and ``moe:...``
``huggingface``    the shape from a Hugging Face ``config.json``; ``huggingface_families`` has what
                   a row for a ``model_type`` is, ``huggingface_dense`` the rows of dense language
                   models, ``huggingface_encoders`` those of BERT, ViT and T5,
                   ``huggingface_experts`` those of mixtures of experts,
                   ``huggingface_deepseek`` those of DeepSeek and models with its attention,
                   ``huggingface_hybrids`` those of state-space models, ``huggingface_towers`` those
                   of speech and text, and of images beside text, ``huggingface_images`` towers of
                   images before language models, ``huggingface_diffusion`` those of
                   diffusion transformers, ``huggingface_fields`` what hangs on several keys
``graph``          the data: `graph.Operator`, `graph.OperatorGraph`, `graph.Layer`,
                   `graph.Workload`
``recompute_parts``  parts of a layer that selective recompute runs again, or policies
``named_tensors``  activations of a layer by name: what a policy keeps, what waits on the host
``layer_forward``  which operators of a captured forward are what, and what runs again of it
``weight_gradients``  the part of a backward that only weight gradients need
``recipes``        linear layers in fewer bits: what stays in 16 bits, what is kept; ``casts``: the
                   products and their casts, ``narrow_gathers``: gathers of narrow copies,
                   ``narrow_dispatch``: tokens that go to their experts so
``bf16_layers``    first and last layers that stay in 16 bits beside those in a recipe
``linear_precisions``  linear layers by name that run in another recipe than the others
``fusion``         operators merged as frameworks and compilers do
``workload_file``  a workload as a JSON file, written, read and checked
``cache``          captured variants on disk and in the package
``summary``        totals of a workload, layer by layer
``draw``           operator graphs as HTML and Graphviz
``capture``        from torch to graphs (its index has the formulas of stash and memory)

Formula -> function
-------------------
FLOPs of a product                       -> `graph.Gemm.flops`
FLOPs that the model asks for            -> `graph.Operator.model_flops`, `experts.surplus_flops`
FLOPs of training a partly frozen model  -> `graph.WorkloadVariant.training_flops`
layers that gradients come back to       -> `trained.roles_of`
rows that a grouped product computes     -> `experts.rows_of_expert`,
                                            `experts.rows_of_capacity`
work of a chunked scan or delta rule     -> `recurrences.ScanShape`, `recurrences.DeltaShape`
stash and operators of recomputed parts  -> `recompute_parts`
what stays of a microbatch from the rest
of its backward to its weight gradients  -> `weight_gradients.weight_operand_bytes`
keys and values that devices of a
sequence send, and what they hold more   -> `context_parallel`
bytes that an operator reads and writes  -> `graph.OperatorGraph.read_bytes`,
                                            `graph.OperatorGraph.write_bytes`
FLOPs of an indexer, and of what it learns from -> `sparse_attention.index_work`,
                                            `sparse_attention.target_work`,
                                            `sparse_attention.index_backward_work`
entries that a query sees, weights of streams -> `compressed_attention.CompressedAttention`
FLOPs of a graph, of a model's forward   -> `graph.OperatorGraph.flops`,
                                            `graph.WorkloadVariant.forward_flops`
vocabulary padded for a tensor degree    -> `config.TransformerConfig.padded_vocabulary`
tensor degrees that divide a model       -> `config.TransformerConfig.divides`
which products run in a recipe           -> `casts.linear_products`
bytes of a stash in a recipe             -> `recipes.stash_change_bytes`
HBM bytes that fusion saves              -> `fusion.fuse`
bytes that a layer communicates          -> `summary.collective_bytes`
"""
