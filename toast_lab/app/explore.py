"""``explore``: the explorer for what you have at hand, in a notebook cell or in the browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toast_lab.errors import FrontendError
from toast_lab.frontends import Model, from_jax
from toast_lab.frontends import load as load_model

CELL_HEIGHT = 860


def explore(model: Model | str | Callable[..., Any] | None = None, *args: Any, port: int = 0, show: bool = True) -> Any:
    """Open the explorer.

    Args:
        model: a Model, the name of a built-in one, a JAX function, or nothing to begin with the gallery.
        args: arguments of the function, arrays or shapes.
        port: where to serve outside a notebook; any free one by default.
        show: open a browser window outside a notebook.

    Returns:
        Inside a notebook the explorer, to be shown by the cell; elsewhere it is served on 127.0.0.1 until interrupted.
    """
    from toast_lab.app.explorer import Explorer
    from toast_lab.app.session import Session
    from toast_lab.app.worker import Loaded, analyse

    if isinstance(model, str):
        loaded = load_model(model)
    elif model is None or isinstance(model, Model):
        loaded = model or load_model("attention")
    elif callable(model):
        loaded = from_jax(model, *args)
    else:
        raise FrontendError(
            f"explore takes a Model, a function or the name of a built-in model, not a {type(model).__name__}"
        )
    made = Loaded(loaded, analyse(loaded))

    def make() -> Explorer:
        session = Session()
        session.step = "graph"
        session.show(made)
        explorer = Explorer(session, height=CELL_HEIGHT if in_notebook() else None)
        explorer.watch()
        return explorer

    if in_notebook():
        return make()
    import socket

    from toast_lab.app.serve import start

    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    print(f"TOAST Lab on http://127.0.0.1:{port} (stop with Ctrl-C)", flush=True)
    start(make, port, "127.0.0.1", show=show)
    return None


def in_notebook() -> bool:
    """Are we inside a Jupyter kernel?"""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
