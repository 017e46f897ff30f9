"""Accelerators: their cores and memories, their area, and the energy of each event.

The room takes numbers, the name of a preset or a file, and gives an `Accelerator`.

* ``accelerator``: the chip and its peak rates; refuses chips that cannot be built.
* ``measured_constants``: its calibration, measured once for all operators and models.
* ``area``: two area models over one table of SRAM macros.
* ``energy``: joules per arithmetic operation and per byte, watts of leakage.
* ``process_node``: in what a chip is made, and the area of its dies.
* ``fields``: every number by name and unit, as files, ``--set`` and ``show`` have them.
* ``chip_file``: an accelerator as a file, with where each number comes from.
* ``presets``: accelerators by name or from a file, with single numbers changed.
* ``kernels``: what each kernel of fused attention makes of a chip; ``ranges``: by how much chips of
  one name differ.
* ``data``: every constant with its unit and source.

Where each formula is:

* area of a vector core, of a tensor core: `area.vector_core_um2`, `area.tensor_core_um2`
* area of a chip under each model: `area.area_of_arrays_mm2`
* area of all dies of a chip, stacks of memory: `process_node.known_silicon_mm2`,
  `process_node.memory_stacks`
* area and energy of an SRAM macro between tabulated sizes: `area.SramTable.interpolate`
* default size of a private buffer: `accelerator.default_l2_bytes`
* bandwidth of a global buffer that nobody states: `chip_file.glb_bytes_per_cycle_for`
* peak FLOP/s, usable HBM, sustained HBM bandwidth: properties of `accelerator.Accelerator`
* largest PE array and largest chip that can be built: `buildable.check_chip`
* joules per multiply-accumulate, lane cycle and byte: `energy.energy_per_event`
* leakage power: `energy.static_power_w`
"""
