"""What other tools write, read as runs of this one.

- `framework_config`: the entrance; which framework wrote a file, by its name and content.
- `megatron_arguments`, `torchtitan_config`, `maxtext_config`: one framework each.
- `imported`: what was found, and the command that evaluates it.

Nothing is executed: arguments, TOML and YAML are data, and Python is refused.
"""
