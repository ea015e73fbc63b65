"""What a plan is priced on (paper section 5).

Devices, the links between them, and the time of collectives over those.

Takes: a machine's name or file, and a mesh. Gives: a `Machine`, the links under each mesh axis
(`AxisLinks`), and seconds for a collective. Knows no program. Start reading at `machine_model.py`,
then `topology.py` and `collectives.py`; the built-in machines are files in `builtin/`, and
`calibrate_fit.py` fits a machine to measurements.
"""
