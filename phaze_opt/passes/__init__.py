"""From operators on a chip to what a layer costs: the only place between the two.

`graphs` names the graphs of a layer that run. `estimates` estimates all passes of all layers on all
chips at once (`PassEstimates`, arrays of chips × operators), collectives beside products included
(`chunked_collectives`). `problem`, `residency` and `tiles` (operators that run tile by tile) write
one pass as the scheduler takes it,
`scheduled` schedules it (`ScheduledPass`; `totals` adds up its operators). `layers` joins the
passes of every layer to the `LayerCost` that a placement takes (`layer_cost`), which is bare of
seconds in `bare_layers`, and none of which is shorter than its `launches` by the host;
`weight_gradients` says what of a backward may be put off.

Bounds stand beside the costs: `least_seconds` of passes on tens of thousands of chips, or of boxes
of them by their peak rates and, more closely, by their cores (`least_units`),
`least_energy` of a batch; `handled` lists the options that they know.

Where each formula is:

* which graphs run, and which of them again before the backward: `graphs.graphs_of`,
  `graphs.again_in`
* what remains of a collective beside a product: `chunked_collectives.beside_products`
* kernels that the host launches, and for how long: `launches.launches`, `launches.host_s`
* lanes at another rate: `estimates.with_lane_rate`
* shares of bandwidths: `problem.bandwidth_shares`; what stays on the chip: `residency.residency_of`
* time of operators in tiles: `tiles.TiledPass.prices`, `tiles.TiledPass.in_groups`
* parameters of a stage, tied ones once: `layer_cost.local_parameters`
* weights that have narrow copies, and those that stay in 16 bits: `bare_layers.narrow_weights`
* exchanges of tokens beside another microbatch: `paired.paired_s`
* the part of a backward that only weight gradients need: `weight_gradients.with_weight_gradients`
* copies around the communication of replicas: `bare_layers.copies_s`
* activations that wait on the host: `offload.offloaded_bytes`, `offload.behind_link`
"""
