"""Split the graphs of two published problem formats over devices, with proofs.

Takes a file of the ``dnn-partitioning`` format (M. Tarnawski et al., NeurIPS 2020) or of the
``phaze`` format (Phaze, ICML 2024). Gives the device of every operator
(`dag.DeviceAssignment`) or the stages of every layer (`published.PublishedPlacement`). Only the
command ``place`` uses this room.

- `phaze_format`, `dnn_format`: readers of the two formats; `file_rows`: what both have in common.
- `unit_graph`: operators merged into units that share a device.
- `downsets`: all downsets of a graph, hence all contiguous sets of nodes.
- `dag`: contiguous splits with the least largest load; `dag_kernels` holds its compiled loops.
- `merged_splits`: good contiguous splits of graphs with too many downsets.
- `path_search`: those within a limit, exactly, where a graph is a few long paths; `path_arrays`:
  such a graph as arrays; `path_kernels` holds the compiled loops.
- `integer_program`: splits that need not be contiguous, and least latency, with CP-SAT.
- `latency`: latency of a placement of an inference graph, and simple placements;
  `latency_search`: the least one, exactly; `latency_kernels` holds its compiled loops.
- `published`: the published cost and its optimum; `published_kernels` holds its compiled loops.
- `true_cost`: a file of the ``phaze`` format as a problem for `phaze_opt.placement`.

Where a formula or rule stands:

- load of a device -> `dag.device_load`, `dag_kernels.transfer_change`, `path_arrays.PathArrays`
- lower bound of the largest load -> `dag.share_bound`; a stronger one ->
  `path_search.PathSearch.between`
- least largest load over contiguous splits -> `dag_kernels.relax_downsets`
- latency of a placement -> `latency.finishes`, `latency_kernels._time_label`; its lower bounds ->
  `latency.longest_path`, `latency_search`
- load and memory of a stage under the published cost -> `published_kernels._stage`
- time of a batch under the published cost -> `published_kernels.best_degrees`
- constants of the published cost -> ``data/phaze_cost.toml``
- merging of colocated operators, cycles and free operators -> `unit_graph.build_unit_graph`
"""
