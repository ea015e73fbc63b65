"""The smallest Panel page with a button and a figure, the unit of time for a first screen."""

import panel as pn
from bokeh.plotting import figure

pn.extension()
drawing = figure(width=300, height=200)
drawing.scatter([0, 1], [0, 1])
pn.Column(pn.widgets.Button(name="bare"), pn.pane.Bokeh(drawing)).servable()
