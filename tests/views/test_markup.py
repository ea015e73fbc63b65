"""Names from user code never become HTML."""

from __future__ import annotations

from toast_lab.app.app_server import bound_address, is_loopback, own_model
from toast_lab.views.markup import Safe, facts, h, join

EVIL = "<img src=x onerror=alert(1)>\"'&"


def test_text_and_attributes_are_escaped() -> None:
    assert "<img" not in h("b", EVIL, title=EVIL)
    assert "<img" not in facts([(EVIL, EVIL)])
    assert "<img" not in join(EVIL, h("i", EVIL))
    assert h("p", h("b", "x")) == "<p><b>x</b></p>"
    assert h("p", Safe("<i>ours</i>")) == "<p><i>ours</i></p>"


def test_formatting_takes_safety_away() -> None:
    assert "&lt;b&gt;" in h("p", f"{h('b', 'x')}")


def test_only_loopback_addresses_may_offer_own_models() -> None:
    for address in ("127.0.0.1", "localhost", "::1"):
        assert is_loopback(address)
        assert own_model(address, "m:make") == ("m:make", "")
    for address in ("0.0.0.0", "192.168.1.4", "::", "", "example.org"):
        offered, why = own_model(address, "m:make")
        assert offered == ""
        assert "only built-in models" in why


def test_the_address_of_panel_serve_is_found() -> None:
    assert (
        bound_address(
            ["python", "-m", "panel", "serve", "apps/explorer.py", "--address", "127.0.0.1"]
        )
        == "127.0.0.1"
    )
    assert bound_address(["panel", "serve", "apps/explorer.py", "--address=0.0.0.0"]) == "0.0.0.0"
    assert bound_address(["panel", "serve", "apps/explorer.py"]) == ""
