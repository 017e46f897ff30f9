"""From operators on a chip to what a layer costs: the only place between the two.

`graphs` names the graphs of a layer that run. `estimates` estimates all passes of all layers on all
chips at once (`PassEstimates`, arrays of chips × operators), collectives beside products included
(`chunked_collectives`). `problem` and `residency` write one pass as the scheduler takes it,
`scheduled` schedules it (`ScheduledPass`; `totals` adds up its operators). `layers` joins the
passes of every layer to the `LayerCost` that a placement takes (`layer_cost`), which is bare of
seconds in `bare_layers`.

Bounds stand beside the costs: `least_seconds` of passes on tens of thousands of chips,
`least_energy` of a batch; `handled` lists the options that they know.
"""
