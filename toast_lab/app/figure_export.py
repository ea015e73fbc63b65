"""Save a figure as PNG or SVG, in the browser.

Nothing is sent to the server or fetched from elsewhere.

BokehJS redraws a view for an export: ``view.export("svg")`` into SVG elements,
``view.export("png")`` on a canvas, whatever the page itself draws on. A picture is saved as it is
on the page, with its size and zoom. PNG files get a white background; SVG files have none, like the
figures themselves.
"""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets
from toast_lab.files import file_name


class FigureMenu(JSComponent):
    """Two small buttons that save a figure.

    If several visible figures have its name, they save the nearest one.
    """

    figure = param.String(default="", doc="name of the Bokeh model that is saved")
    file = param.String(default="figure", doc="name of the file without its ending")

    _esm = assets.script("download") + assets.script("figure_export")
    _stylesheets = [assets.sheet("figure_export")]  # noqa: RUF012


def figure_menu(figure: str, **kwargs: Any) -> FigureMenu:
    """Buttons that save a figure of the page.

    Args:
        figure: name of a Bokeh figure or layout, and of the file; figures that are redrawn
            keep their name.
        kwargs: for the component.
    """
    kwargs = {"margin": (2, 4), "width": 92, "height": 26, "sizing_mode": "fixed", **kwargs}
    return FigureMenu(figure=figure, file=file_name(figure), **kwargs)
