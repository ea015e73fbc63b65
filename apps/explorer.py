"""The explorer for ``panel serve apps/explorer.py --address 127.0.0.1 [--args my.module:make]``."""

import sys

import panel as pn

from toast_lab.app.app_server import bound_address, page

pn.config.browser_info = True
model = next((word for word in sys.argv[1:] if ":" in word), None)
page(bound_address(), model)().servable(title="TOAST Lab")
