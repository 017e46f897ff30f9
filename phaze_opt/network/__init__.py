"""What a cluster looks like, and what every collective and message on it costs.

- `cluster`: levels of links; `presets` finds one by name or file, `cluster_file` reads and writes
  files, `level_values` names the numbers of levels, as axes and ``--set`` do.
- `slices`: the parts of a torus that a training run may have to itself.
- `term`: what one way to communicate takes and sends, by the size.
- `collective`: the algorithms that a group can choose from, and the cheapest; `algorithms` has what
  each costs, `groups` which levels and links a group uses, `torus` how many messages share a link,
  `uplinks` how much the links above leaf switches slow them.
- `message`: point to point, between stages of a pipeline.
- `token_exchange`: tokens to the devices of their experts and back, by dispatcher.
- `bill`: what switches, cables and transceivers cost and draw.
- `estimate`: one collective by itself, as one measures it.

Where a formula stands:

- time of any communication -> `term.Term.seconds`
- ring, tree and pairwise exchange -> `algorithms.flat_terms`
- level by level, and in the switch -> `algorithms.hierarchical_term`
- ring all-reduce on a torus -> in the order of ranks `algorithms.flat_terms` with
  `torus.ring_load`, axis by axis `algorithms.hierarchical_term`
- rings, exchanges and messages above leaf switches -> `uplinks.ring_slowdown`,
  `uplinks.pairwise_slowdown`, `uplinks.halving_slowdown`, `uplinks.shift_slowdown`
- bytes over each level -> `sent_per_byte` of the same terms
- time to start -> `cluster.launch_s`; ramp of medium sizes -> `cluster.NetworkLevel.ramp_s`
- destinations of a token -> `token_exchange.destinations`; multiprocessors of a dispatcher ->
  `token_exchange.DirectionRates.seconds`
- bus bandwidth -> `estimate.bus_bandwidth_bytes_per_s`
"""
