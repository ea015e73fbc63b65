"""The machines that plans are priced on (paper section 5).

A machine is its devices and the links between them; the time of collectives follows from these.

Takes: a machine's name or file, and a mesh. Gives: a `Machine`, the links under each mesh axis
(`AxisLinks`), and seconds for a collective. Does not depend on programs.

Start reading at `machine_model.py`, then `topology.py` and `collectives.py`; the built-in machines
are files in `builtin/`, and `calibrate_fit.py` fits a machine to measurements.
"""
