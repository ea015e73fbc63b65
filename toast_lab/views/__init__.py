"""Show results: tidy tables first, then pictures drawn from them.

The figures are those of paper sections 3 and 5.

Takes: what the earlier stages return. Gives: data frames, which the tests check, and HoloViews or
Bokeh elements or SVG drawn from them. Nothing here traces, searches or compiles.
Start reading at `graph_layout.py`, then `graph_plot.py`. The functions that notebooks call through
this package, such as `tl.views.graph(analysis)`, are in `toast_lab/app/cells`.
"""
