"""``explore``: open the explorer on a model or function, in a notebook cell or in the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toast_lab.errors import FrontendError
from toast_lab.frontends import from_jax
from toast_lab.frontends import load as load_model
from toast_lab.ir.model import Model
from toast_lab.machines.machine_model import Machine
from toast_lab.sharding.mesh import Mesh

CELL_HEIGHT = 900


class InCell:
    """The explorer in a notebook cell: a frame on the small server inside the kernel.

    Attributes:
        url: address of the page; open it in its own tab for more room.
    """

    def __init__(self, url: str, about: str, server: Any = None) -> None:
        self.url, self._about = url, about
        self._server = server

    def stop(self) -> None:
        """Stop serving it; the frame stays in place but no longer responds."""
        if self._server is not None:
            self._server.stop()
        else:
            from toast_lab.app import frames

            frames.remove(self.url)

    def _repr_html_(self) -> str:
        if self._server is not None:
            size = f'width="100%" height="{CELL_HEIGHT}" style="border: 0"'
            return f'<iframe src="{self.url}" {size} title="TOAST Lab"></iframe>'
        from toast_lab.app import frames
        from toast_lab.views.markup import h

        message = h(
            "p", h("b", "TOAST Lab: "), self._about, ". Run this cell to open the explorer here."
        )
        return frames.html(self.url, CELL_HEIGHT, "TOAST Lab", message)

    def __repr__(self) -> str:
        return f"TOAST Lab on {self.url}"


def explore(
    model: Model | str | Callable[..., Any] | None = None,
    *args: Any,
    mesh: Mesh | Mapping[str, int] | str | None = None,
    machine: str | Path | Machine | None = None,
    port: int = 0,
    show: bool = True,
    inline: bool = False,
) -> Any:
    """Open the explorer.

    Args:
        model: a Model, the name of a built-in one, a JAX function, or nothing to begin with the
            gallery.
        args: arguments of the function, arrays or shapes.
        mesh: what the page begins with, as ``tl.Problem`` takes it: "4x2", "data=4,model=2" or a
            dict; 4 x 2 devices by default.
        machine: a name that ``toast-lab machines`` lists, a machine file (.toml), or a Machine;
            "tpu-v5e" by default.
        port: where to serve; any free port by default.
        show: open a browser window, outside a notebook.
        inline: in a notebook whose kernel runs elsewhere, return a Panel object that communicates
            through the notebook.

    Returns:
        Inside a notebook the explorer, which the cell shows; elsewhere None, once serving on
            127.0.0.1 is interrupted.

    Examples:
        >>> import toast_lab as tl
        >>> tl.explore("attention", mesh={"data": 8}, machine="h100")  # doctest: +SKIP

    Raises:
        InvalidProblem: the mesh or the machine is not valid.
        FrontendError: the model cannot be loaded.
    """
    import panel as pn

    from toast_lab.app import app_server, frames, theme
    from toast_lab.app.explorer import Explorer
    from toast_lab.app.gallery import FIRST_MODEL
    from toast_lab.app.loaded import LoadedState
    from toast_lab.app.session import Session
    from toast_lab.conflicts.analysis import analyse
    from toast_lab.cost.problem import Problem
    from toast_lab.jobs.load_job import LoadedModel
    from toast_lab.machines.catalogue import MACHINES
    from toast_lab.machines.catalogue import machine as find_machine
    from toast_lab.models.registry import WORTHWHILE_SIZES

    if model is None or isinstance(model, str):
        loaded = (
            load_model(model) if model else load_model(FIRST_MODEL, **WORTHWHILE_SIZES[FIRST_MODEL])
        )
    elif isinstance(model, Model):
        loaded = model
    elif callable(model):
        loaded = from_jax(model, *args)
    else:
        raise FrontendError(
            "explore takes a Model, a function or the name of a built-in model, not a "
            f"{type(model).__name__}"
        )
    chosen = find_machine(machine or LoadedState.machine)
    # A wrong mesh is an error here, not a message to the first visitor
    problem = Problem(analyse(loaded), mesh or LoadedState.mesh, chosen)
    analysed = LoadedModel(problem.analysis.model, problem.analysis)

    def make() -> Explorer:
        if not inline:
            theme.dress(pn.state.curdoc)
        session = Session()
        is_listed = chosen is MACHINES.get(chosen.name)
        kept = chosen if is_listed else session.loaded.keep_machine(chosen)
        session.set_problem(mesh=str(problem.mesh), machine=kept.name)
        session.step = "load" if model is None else "graph"
        session.show(analysed)
        explorer = Explorer(session, height=CELL_HEIGHT if inline else None)
        explorer.watch()
        return explorer

    if inline:
        pn.extension("tabulator", inline=True)
        return make()
    if in_notebook() and not port:
        return InCell(frames.add(make), str(loaded))
    port = port or frames.free_port()
    url = f"http://127.0.0.1:{port}"
    if in_notebook():
        server = app_server.prepare(make, port, "127.0.0.1")
        server.start()
        return InCell(url, str(loaded), server)
    print(f"TOAST Lab on {url} (stop with Ctrl-C)", flush=True)
    app_server.start(make, port, "127.0.0.1", show=show)
    return None


def in_notebook() -> bool:
    """Are we inside a Jupyter kernel?"""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
