"""What other tools write, read as runs of this one; and what of this one they read.

- `framework_config`: the entrance; which framework wrote a file, by its name and content.
- `megatron_arguments`, `torchtitan_config`, `maxtext_config`: one framework each.
- `imported`: what was found, and the command that evaluates it.
- `chakra`: a batch as execution traces, a file per rank; `chakra_schema`: their messages.
- `batch_nodes`: what each stage does in a batch, as nodes that wait for one another
  (`stage_nodes`), with `layer_pieces` (how the layers run) and `node_exchanges` (what is sent among
  which ranks).

Nothing is executed: arguments, TOML and YAML are data, and Python is refused.
"""
