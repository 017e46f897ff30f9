"""The model that is trained, as operator graphs of its layers.

The room takes the name of a model (or a torch module) and gives a `graph.Workload`: the distinct
layers with their forward and backward operators, parameters, stash and transient memory, for each
tensor degree and microbatch. Only ``capture/`` imports torch.

Modules
-------
``zoo``            a model by name: `zoo.load_workload`, `zoo.model_names`, `zoo.tensor_degrees`
``config``         the shape of a transformer
``experts``        mixtures of experts and latent attention: shapes, and grouped products
``expert_parallel``  a captured model whose routed experts are shared out among devices
``context_parallel``  a captured model whose sequences are shared among devices
``trained``        what of a model is trained: frozen parts, and low-rank adapters
``model_string``   the shape from ``gpt:...``, ``llama:...`` and ``moe:...``
``huggingface``    the shape from a Hugging Face ``config.json``; ``huggingface_families`` has a row
                   for every ``model_type``, ``huggingface_experts`` those of mixtures of experts,
                   ``huggingface_fields`` what hangs on several keys
``graph``          the data: `graph.Operator`, `graph.OperatorGraph`, `graph.Layer`,
                   `graph.Workload`
``recompute_parts``  parts of a layer that selective recompute runs again
``recipes``        linear layers in fewer bits: what stays in 16 bits, what is kept; ``casts``: the
                   products and their casts, ``narrow_gathers``: gathers of narrow copies
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
rows that a grouped product computes     -> `experts.rows_of_expert`
stash and operators of recomputed parts  -> `recompute_parts`
keys and values that devices of a
sequence send, and what they hold more   -> `context_parallel`
bytes that an operator reads and writes  -> `graph.OperatorGraph.read_bytes`,
                                            `graph.OperatorGraph.write_bytes`
FLOPs of a graph, of a model's forward   -> `graph.OperatorGraph.flops`,
                                            `graph.WorkloadVariant.forward_flops`
vocabulary padded for a tensor degree    -> `config.TransformerConfig.padded_vocabulary`
tensor degrees that divide a model       -> `config.TransformerConfig.divides`
which products run in a recipe           -> `casts.linear_products`
bytes of a stash in a recipe             -> `recipes.stash_change_bytes`
HBM bytes that fusion saves              -> `fusion.fuse`
bytes that a layer communicates          -> `summary.collective_bytes`
"""
