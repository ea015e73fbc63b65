"""Serve the explorer.

It is started by ``toast-lab serve``, ``python -m toast_lab.app.app_server``, or inside
``panel serve``.

The page runs code on this machine, so it listens on 127.0.0.1 unless told otherwise, accepts
websockets from its own pages only, and offers the user's own model only where nobody else can reach
it. No URL parameter loads or runs code or a file: a link shows a view of a built-in model
(``link``), and the key of a page's state lets a reload keep everything.
"""

from __future__ import annotations

import errno
import gc
import importlib
import ipaddress
import re
import secrets
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from toast_lab import checks
from toast_lab.app import server_log
from toast_lab.errors import InvalidInput, RunFailed, ToastError, join_offenders
from toast_lab.jobs.warm import warm_up
from toast_lab.prepare import prepare as prepare_kernels
from toast_lab.prepare import start_early

KEPT_SESSIONS = 32
#: sessions by key, with the steps that their addresses named
_KEPT: OrderedDict[str, Any] = OrderedDict()


def is_loopback(address: str) -> bool:
    """Can only this machine reach ``address``?

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def own_model(address: str, model: str | None, origins: tuple[str, ...] = ()) -> tuple[str, str]:
    """(the user's own model if the page may offer it, else the reason why it may not)."""
    foreign = [origin for origin in origins if not is_loopback(_host(origin))]
    if not is_loopback(address) or foreign:
        addresses = ", ".join([address or "all interfaces", *foreign])
        return "", (
            f"Served on {addresses}, which others can reach, so only built-in models are offered: "
            "loading your own runs your code. Serve on 127.0.0.1 for your own models."
        )
    return model or "", ""


def _host(origin: str) -> str:
    """The host of ``host:port``."""
    return origin.rpartition(":")[0].strip("[]")


def read_origin(origin: str) -> str:
    """``host:port`` in the form that browsers send.

    Raises:
        InvalidInput: it is something else, such as a whole address or a pattern.

    >>> read_origin("Lab.example.org:5006")
    'lab.example.org:5006'
    """
    match = re.fullmatch(
        r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]):([0-9]{1,5})", origin.strip().lower()
    )
    if not match or not 1 <= int(match.group(3)) <= 65535:
        raise InvalidInput(
            f"--allow-origin {origin!r:.80} is not HOST:PORT, the name and port in the address "
            'that browsers open, such as "lab.example.org:5006" (443 for https without a port, 80 '
            "for http)"
        )
    return f"{match.group(1)}:{int(match.group(3))}"


def bound_address(argv: list[str] | None = None) -> str:
    """The address that ``panel serve`` was told to listen on.

    It is empty (all interfaces) if none was given.
    """
    arguments = sys.orig_argv if argv is None else argv
    for i, argument in enumerate(arguments):
        if argument.startswith("--address="):
            return argument.partition("=")[2]
        if argument == "--address" and i + 1 < len(arguments):
            return arguments[i + 1]
    return ""


#: Modules that are imported when a page or a chart is first made.
_LOADED_LATE = (
    "panel.io.browser",
    "panel.io.location",
    "toast_lab.app.explorer",
    "toast_lab.report.document",  # drawn in the thread of an export
    "toast_lab.views.search_chart",
)


def import_for_pages() -> None:
    """Import what pages need, in this thread, by drawing whatever imports more when first drawn.

    Modules of Pandas, Narwhals and HoloViews import each other in circles, so two threads that
    import them at the same time can wait for each other; Python then gives one of them half a
    module, or an error.
    """
    import pandas as pd
    import panel as pn

    for module in _LOADED_LATE:
        importlib.import_module(module)
    frame = pd.DataFrame({"column": [1.0]})
    frame.to_dict("records")
    for drawn in (pn.widgets.Tabulator(frame), pn.pane.Markdown("text")):
        drawn.get_root()


def warm(model: str | None = None) -> None:
    """Import and compile what the first page needs, before it is requested."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # tracing needs no accelerator, and must not hold one
    import_for_pages()
    from toast_lab.app import explorer, gallery
    from toast_lab.app.session import Session
    from toast_lab.models import registry

    session = Session()
    # Kept for all sessions, as are the other models that are traced without a child
    session.load("transformer")
    session.load(gallery.FIRST_MODEL, registry.WORTHWHILE_SIZES[gallery.FIRST_MODEL])
    explorer.Explorer(session)
    if model is not None:
        session.load(model)
    # All objects so far stay: searching all of JAX for garbage takes a fifth of a second, while a
    # page waits.
    gc.collect()
    gc.freeze()
    # Nor are the objects of pages searched in the middle of a click. Panel collects garbage when a
    # session ends.
    gc.set_threshold(50_000, 20, 20)


def page(address: str, model: str | None, origins: tuple[str, ...] = ()) -> Callable[[], Any]:
    """A function that makes the page of one session.

    ``origins`` are further names under which it is served.
    """
    server_log.pass_over_closed_pages()
    built_in = model if model and ":" not in model else ""
    offered, refusal = own_model(address, None if built_in else model, origins)

    def make() -> Any:
        import panel as pn

        from toast_lab.app import gallery, link, theme
        from toast_lab.app.explorer import Explorer
        from toast_lab.app.model_loading import load_at_once
        from toast_lab.app.page_stack import PAGES, page_of, steps
        from toast_lab.app.session import Session
        from toast_lab.jobs.job import JOBS
        from toast_lab.models import registry

        theme.dress(pn.state.curdoc)
        host = str((pn.state.headers or {}).get("Host", ""))
        host_is_ours = is_loopback(_host(host)) or _is_among(host, origins)
        if is_loopback(address) and host and not host_is_ours:
            # A foreign name was made to point here
            return pn.pane.Str("Not served under this name.")
        location = pn.state.location
        fields = _query(location)
        predecessor, its_steps = _KEPT.get(fields.get("state", ""), (None, None))
        session = predecessor.fork() if predecessor is not None else Session()
        key = secrets.token_urlsafe(16)
        job = JOBS.find(fields.get("job", "")) if predecessor is None else None
        if job is not None:
            session.adopt(job)  # its id cannot be guessed; adopting it starts nothing
        view, refused_fields = link.read(location.search if location is not None else "", steps())
        if predecessor is not None:
            # A load that is under way takes its session to the link's page by itself. A page that
            # is loaded anew before its address was written stays where it has gone meanwhile.
            if not session.work.runs("load") and not its_steps.may_name(view.step):
                session.step = view.step or session.step
        else:
            if session.loaded.analysis is None and not view.model:
                which = offered or built_in or gallery.FIRST_MODEL
                session.load(
                    which,
                    registry.WORTHWHILE_SIZES.get(which),
                    then=lambda loaded: link.open_view(loaded, view),
                )
            else:
                link.open_view(session, view)
            # A load in a worker takes seconds: show another model meanwhile, but not before the
            # user's own
            if session.loaded.analysis is None and not offered:
                first, sizes = gallery.FIRST_MODEL, registry.WORTHWHILE_SIZES[gallery.FIRST_MODEL]
                session.show(load_at_once(first, sizes), first, sizes)
        if refused_fields:
            session.notices.say(
                "Ignored in the address:\n" + join_offenders(refused_fields, 8), "error"
            )
        if predecessor is None and fields.get("state"):
            session.notices.say(
                "The server has started anew since this page was opened, or many pages were opened "
                "after it: what was done on it is gone, except for what its address says."
            )
        explorer = Explorer(session, offered=offered, refusal=refusal)
        explorer.address.extra["state"] = key
        _KEPT[key] = session, explorer.address.steps
        while len(_KEPT) > KEPT_SESSIONS:
            _KEPT.popitem(last=False)
        # A page that is loaded anew while it loads another model than that of its address goes on
        is_asked = predecessor is None or session.loading_built_in[0] == view.model
        if view.model and location is not None and session.work.awaits("load") and is_asked:
            explorer.address.lead_to(link.asked(location.search))
            page_title = PAGES[page_of(view.step or session.step)].title
            session.notices.say(
                f"Loading {view.model}; then “{page_title}” opens, as the link asks."
            )
        explorer.watch()
        return explorer

    return make


def _query(location: Any) -> dict[str, str]:
    from urllib.parse import parse_qs

    from toast_lab.app import link

    search = ((location.search if location is not None else "") or "")[: link.MAX_QUERY]
    return {
        key: value[-1]
        for key, value in parse_qs(search.lstrip("?")).items()
        if key in link.SERVER_FIELDS
    }


def serve(
    port: int = 5006,
    address: str = "127.0.0.1",
    model: str | None = None,
    show: bool = False,
    origins: tuple[str, ...] = (),
) -> None:
    """Serve the explorer until interrupted.

    Args:
        port: where to listen.
        address: 127.0.0.1 by default; on any other than a loopback address only built-in models are
            offered.
        model: a built-in model or ``package.module:make`` to begin with.
        show: open a browser window.
        origins: further ``host:port`` from which pages may connect; if one of them is not a
            loopback name, only built-in models are offered.

    Raises:
        InvalidInput: the port or an origin is not valid.
        RunFailed: the port is in use.
        ToastError: the model may not be offered there.
    """
    origins = tuple(read_origin(origin) for origin in origins)
    if model is not None and ":" not in model:
        from toast_lab.models import registry

        registry.built_in(model)  # an unknown name is reported now, not to the first visitor
    refusal = own_model(address, model if model and ":" in model else None, origins)[1]
    if refusal and model and ":" in model:
        raise ToastError(f"--address {address}: {refusal}")
    port = checks.whole(name="port", value=port, least=1, most=65535, error=InvalidInput)
    check_free(port, address)
    start_early()
    warm_up()
    print(
        f"Starting TOAST Lab; it will answer on port {port} of {address} in a few seconds ...",
        flush=True,
    )
    if refusal:
        print(refusal, flush=True)
    prepare_kernels("price")
    warm()
    print(greeting(address, port, origins), flush=True)
    start(page(address, model, origins), port, address, show=show, origins=origins)


def check_free(port: int, address: str) -> None:
    """Refuse a port that cannot be listened on, before seconds are spent on starting.

    Raises:
        RunFailed: it is in use, or the address is not one of this machine.
    """
    from tornado.netutil import bind_sockets

    try:
        sockets = bind_sockets(port, address or None)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise RunFailed(
                f"cannot listen on port {port} of {address}: {error.strerror}"
            ) from None
        own_host = hosts(address, port)[0]
        raise RunFailed(
            f"port {port} of {address or 'all interfaces'} is in use, perhaps by an explorer that "
            f"is open already: see http://{own_host}, or choose another with --port"
        ) from None
    for listener in sockets:
        listener.close()


def is_wildcard(address: str) -> bool:
    """Does ``address`` stand for all interfaces?"""
    return address in ("", "0.0.0.0", "::")


def hosts(address: str, port: int, origins: tuple[str, ...] = ()) -> list[str]:
    """The ``host:port`` under which our own pages are reached.

    >>> hosts("192.168.1.5", 5006, ("lab:5006",))
    ['192.168.1.5:5006', '127.0.0.1:5006', 'localhost:5006', 'lab:5006']
    """
    # An address of our own cannot be made to point elsewhere, as a name can.
    own_hosts = (*(() if is_wildcard(address) else (address,)), "127.0.0.1", "localhost")
    named = [f"[{host}]" if ":" in host else host for host in own_hosts]
    return list(dict.fromkeys([*(f"{host}:{port}" for host in named), *origins]))


def greeting(address: str, port: int, origins: tuple[str, ...] = ()) -> str:
    """The text that is printed at the start.

    It has the addresses that work in a browser, and the option with which others can connect.
    """
    own_host = hosts(address, port)[0]
    lines = f"TOAST Lab on http://{own_host} (stop with Ctrl-C)"
    if origins:
        lines += "".join(f"\nalso as {origin}" for origin in origins)
    elif is_wildcard(address):
        lines += (
            "\n"
            "It listens on all interfaces, but pages open on this machine only: say under which "
            f"name others reach it, for instance --allow-origin {socket.gethostname()}:{port}"
        )
    return lines


def _is_among(host: str, allowed: Iterable[str], scheme: str = "") -> bool:
    """Is a request's host allowed? Without a port, the default port of the scheme counts."""
    host = host.lower()
    ports = {"http": (80,), "https": (443,)}.get(scheme, (80, 443))
    names = [host] if re.search(r":[0-9]+$", host) else [f"{host}:{port}" for port in ports]
    return any(name in allowed for name in names)


def prepare(
    make: Callable[[], Any],
    port: int,
    address: str,
    *,
    show: bool = False,
    origins: tuple[str, ...] = (),
) -> Any:
    """A server, not yet started, that gives each visitor what ``make`` returns.

    A request has to use one of the names in ``hosts``, and a websocket has to come from a page
    under such a name: a foreign name that was made to point here (DNS rebinding) is refused, and so
    is a websocket that hides its origin.
    """
    import panel as pn
    from bokeh.settings import settings
    from tornado.routing import Matcher, Rule
    from tornado.web import RequestHandler

    allowed = hosts(address, port, origins)

    class Stranger(Matcher):
        def match(self, request: Any) -> dict[str, Any] | None:
            refused = not _is_among(request.host, allowed)
            if request.path.endswith("/ws"):
                origin = urlsplit(request.headers.get("Origin") or "")
                refused = refused or not _is_among(origin.netloc, allowed, origin.scheme)
            return {} if refused else None

    class Refuse(RequestHandler):
        def prepare(self) -> None:
            self.send_error(403)

    # Bokeh searches every new page for plots without axes and similar faults, and only logs what
    # it finds.
    settings.perform_document_validation = False
    server = pn.serve(
        {"/": make},
        port=port,
        address=address,
        show=show,
        start=False,
        title="TOAST Lab",
        # Bokeh assumes port 80 for any origin without a port; what gets this far has been checked
        # above.
        websocket_origin=[
            *allowed,
            *(origin.removesuffix(":443") + ":80" for origin in allowed if origin.endswith(":443")),
        ],
        verbose=False,
    )
    server._tornado.default_router.rules.insert(0, Rule(Stranger(), Refuse))
    return server


def start(make: Callable[[], Any], port: int, address: str, **options: Any) -> None:
    """Serve to each visitor what ``make`` returns, until interrupted, as ``prepare`` does."""
    server = prepare(make, port, address, **options)
    server.start()
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        pass
    finally:
        from toast_lab.jobs.job import JOBS

        JOBS.cancel_all()
