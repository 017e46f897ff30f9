"""Dollars, watts and carbon of a chip, of the cluster that it stands in, and of what is trained.

The room takes an accelerator, what a batch takes in seconds and joules, and what those who pay
state (`choices.Economics`); it gives a `bill.Bill`. No time or energy of an operator depends on it.

* ``choices``: grid, prices, lifetime, margin, volume: what a user states, by default ranges.
* ``constants``: every constant of ``data`` at its low, central or high value.
* ``die``: dies per wafer, and the share of them that is sold.
* ``package``: memory, interposer, test: what a chip costs to make, and in how many dies.
* ``carbon``: what making a chip and its share of a node emits.
* ``network_share``: price and power of the network, for each device.
* ``operation``: watts of a device at the wall; dollars and carbon per device second and per joule.
* ``rates``: those of a chip, and the least of many chips, which bounds are made of.
* ``bill``: all of it for one evaluation, low, central and high.
* ``data``: every constant with its source; confidence is in ``docs/economics.md``.

Where each formula is:

* dies per wafer, yield with harvesting: `die.dies_per_wafer`, `die.sold_share`
* cost to make a chip by parts: `package.package_usd`
* number of dies of a hypothetical chip: `package.cheapest_dies`
* embodied carbon of a die and of a device: `carbon.die_kg_per_cm2`, `carbon.embodied_kg`
* price of a device with its shares of host and network: `operation.device_usd`
* power of a device at the wall: `operation.wall_power_w`
* cost and carbon of a sample: `operation.Rates.of_sample`; bounds call the same
* most dynamic power within limits of dollars, carbon and watts: `operation.Rates.most_dynamic_w`
"""
