"""Time, traffic and energy of each operator of a graph, on one core and on all cores of a chip.

The room takes an operator graph, accelerators and a cluster, and gives a `GraphEstimate`: seconds
of every resource and joules of every level, per operator. All from first principles; no number
belongs to a model or an operator by name except the counted lane cycles.

* ``estimate``: all operators of a graph; ``single``: one operator for ``phaze-opt estimate``,
  which starts at the burst clock (``isolated``); ``power_limit``: what long runs sustain.
* ``operator_table``: a graph as arrays; ``operator_work``: seconds and bytes of its operators, and
  what binds each; ``traffic``: their joules.
* ``working_sets``: what operators need in a managed buffer beside tensors that stay there;
  ``cut_operators``: which of them can run tile by tile; ``tile_operators``: what one tile is;
  ``cache_reuse``: which reads a cache serves.
* ``chips``: properties of many chips as columns; ``least_seconds``: times of operators on many
  chips at once; ``least_traffic``: what the HBM moves at least while tensors stay on the chip;
  ``least_energy``: what a graph takes at least; ``fitting_tiles``: many chips of which some fit no
  tile of a product.
* ``tensor_core``: the fastest plan of matrix products, chosen from ``gemm_tilings`` (every tiling
  of one product), ``gemm_groups`` (a batch in groups) and ``gemm_traffic`` (HBM and L2 bytes).
* ``vector_core``: lane cycles of vector operators, and rows that a cache keeps.
* ``attention``: fused attention, whose kernel ``attention_tiles`` lays out on tensor cores;
  ``rooflines``: times that no chip of some peak rates can beat.
* ``data``: lane cycles per element, and assumptions about PE arrays and buffers.

Where each formula is:

* latency of an operator (the longest of its times, plus a constant), cycles of its vector work,
  repeated reads of tiles, blocks and long rows: `operator_work.operator_work`
* HBM traffic of a blocked product beyond its operands: `gemm_traffic.repeated_bytes`
* L2 traffic of one tile: `gemm_traffic.tile_l2_bytes`
* wave quantisation: `gemm_tilings.array_cycles`
* tile quantisation, cycles of each dataflow: `gemm_tilings._output_stationary`,
  `gemm_tilings._operand_stationary`
* cycles of products in fewer bits: `operator_table.array_cycles`
* best split of a batch of products: `gemm_groups.group_sizes`
* blocks of fused attention: cycles `attention_tiles._fill_rows`, traffic
  `attention_tiles._repeated_bytes`; time of the lanes that is exposed: `attention.exposed_share`
* cycles of a kernel with few rows: `attention_tiles._busy_cycles`
* rate that the power limit leaves, accumulators: `power_limit.limited_seconds_per_mac`,
  `power_limit.accumulator_s`
* reuse distance of a read, and when a cache serves it: `cache_reuse.Reuse.served_by`
* most bytes that an operator need not move: `least_traffic.most_kept_bytes`
* dynamic energy by level: `traffic.energy_by_level_j`; the least: `least_energy.least_energies_j`
* utilisation: `single.estimate_gemm`, `single.estimate_vector`
"""
