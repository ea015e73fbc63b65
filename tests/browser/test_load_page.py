"""The Load page in the browser, as a person uses it.

The tests cover the gallery, files, mesh and machine while they are typed, reports and progress.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.audit import programs
from toast_lab.app.model_loading import MAX_UPLOAD_BYTES
from toast_lab.frontends import from_jax
from toast_lab.machines.catalogue import MACHINES
from toast_lab.models.registry import WORTHWHILE_SIZES

pytestmark = pytest.mark.browser

SLOW = 90_000
expect.set_options(timeout=30_000)  # a busy machine is slow
GOOD = """
module @dropped {
  func.func public @main(%arg0: tensor<64x32xf32>, %arg1: tensor<32x16xf32>) -> tensor<64x16xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] :
      (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
    %1 = stablehlo.tanh %0 : tensor<64x16xf32>
    return %1 : tensor<64x16xf32>
  }
}
"""


@pytest.fixture
def load_page(served: Callable[..., str], strict_page: Page) -> Page:
    strict_page.set_viewport_size({"width": 1280, "height": 720})
    strict_page.goto(served())
    expect(strict_page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(
        timeout=SLOW
    )
    return strict_page


def open_own(page: Page) -> None:
    """Open the form for a user's own model, which is added to the page on request."""
    page.get_by_role("button", name="My model").click()
    expect(page.get_by_role("button", name="drop a file here")).to_be_visible(timeout=SLOW)


def drop(page: Page, name: str, content: bytes) -> None:
    page.locator("input[type=file]").first.set_input_files(
        {"name": name, "mimeType": "", "buffer": content}
    )


def said(page: Page, words: str) -> None:
    expect(page.locator(".status")).to_contain_text(words, timeout=SLOW)


def test_files_that_are_dropped(load_page: Page, tmp_path: Path) -> None:
    page = load_page
    open_own(page)
    drop(page, "broken.mlir", b"module { func.func @main( oops")
    said(page, "broken.mlir: this is not well-formed StableHLO")
    drop(page, "weights.zip", b"PK\x03\x04" + b"\x00" * 64)
    said(page, "a zip archive")
    ran = tmp_path / "ran"
    drop(page, "model.py", f"open({str(ran)!r}, 'w')".encode())
    said(page, "a file dropped here is never run")
    drop(page, "looks.mlir", f"open({str(ran)!r}, 'w')".encode())
    said(page, "looks.mlir: this is not well-formed StableHLO")
    assert not ran.exists()
    large = tmp_path / "large.mlir"
    with large.open("wb") as file:
        file.truncate(MAX_UPLOAD_BYTES + 2**20)
    page.locator("input[type=file]").first.set_input_files(large)
    said(page, "large.mlir has 65.0 MiB; at most 64 MiB are allowed here")
    # The model loaded before is still there
    expect(page.get_by_text("31 of 31 names").filter(visible=True).first).to_be_visible()

    padded = GOOD.encode() + b"// a comment that takes several pieces\n" * 40_000
    drop(page, "<b>good<b>.mlir", padded)
    said(page, "Loaded b_good_b")
    expect(page.get_by_text("9 of 9 names").filter(visible=True).first).to_be_visible(timeout=SLOW)
    expect(page.get_by_role("gridcell", name="f32[64, 32]")).to_be_visible()
    expect(page).not_to_have_url(re.compile("model=attention"))


def test_mesh_and_machine_are_checked_with_every_key(load_page: Page) -> None:
    page = load_page
    field = page.get_by_label("axes and sizes")
    take = page.get_by_role("button", name="Use this mesh and machine")
    field.fill("")
    expect(page.get_by_text("Type axes as")).to_be_visible()
    field.press_sequentially("data=4,model")
    expect(page.get_by_text("cannot read the mesh 'data=4,model'")).to_be_visible()
    expect(take).to_be_disabled()
    field.press_sequentially("=7")
    expect(page.get_by_text("4 × 7 = 28 devices on tpu-v5e.")).to_be_visible()
    sizes = ", ".join(map(str, sorted({*WORTHWHILE_SIZES["attention"].values()})))
    expect(page.get_by_text(f"model=7 divides no dim; the sizes are {sizes}.")).to_be_visible()
    field.press("Backspace")
    field.press_sequentially("2000")
    expect(page.get_by_text("at most 4,096 are allowed here")).to_be_visible()
    expect(take).to_be_disabled()
    expect(page.get_by_text("data=4,model=2 · ").first).to_be_visible()  # not applied yet
    field.fill("a=2,b=8")
    take.click()
    said(page, "Mesh a=2,b=8, tpu-v5e.")

    page.get_by_label("hardware", exact=True).select_option("a machine file (TOML) …")
    toml = page.get_by_label("TOML of the hardware")
    expect(toml).to_have_value(re.compile('name = "my machine"'))
    text = MACHINES["a100"].toml().replace('"a100"', '"lab box"')
    toml.fill(text.replace("memory_bytes = ", 'memory_bytes = "x" # '))
    expect(page.get_by_text("line 2: memory_bytes = 'x' is not a number")).to_be_visible()
    expect(take).to_be_disabled()
    open_own(page)
    drop(page, "box.toml", text.encode())
    expect(page.get_by_text("lab box: 74.51 GiB a device")).to_be_visible()
    take.click()
    said(page, "Mesh a=2,b=8, lab box.")
    page.get_by_role("button", name=re.compile("Search")).first.click()
    expect(page.get_by_text("a=2,b=8 of lab box").first).to_be_visible(timeout=SLOW)


def test_a_large_model_tells_its_stages_and_can_be_cancelled(load_page: Page) -> None:
    page = load_page
    expect(page.get_by_text("2.51 billion parameters · 11,598 ops")).to_be_visible()
    page.get_by_role("button", name=re.compile("^t7b")).click()
    stages = page.get_by_text(re.compile(r"starting a process \d+\.\d s · preparing \d+\.\d s"))
    expect(stages).to_be_visible(timeout=SLOW)
    # Every model name on the page is that of the new model, and no fact about attention is shown
    # as if it were the new model's
    said(page, "Loading t7b. Until it is loaded, pages 2 to 4 show attention.")
    expect(page).to_have_title("loading t7b · TOAST Lab")
    expect(page).to_have_url(re.compile(r"model=t7b&"))
    expect(page.locator(".subject")).to_have_text("loading t7b …attention until then")
    expect(page.get_by_text("sizes of t7b")).to_be_visible()
    expect(chosen_cards(page)).to_have_text([re.compile("^t7b")])
    for words in ("31 of 31 names", "divides dims of every colour", "Arguments (4)", "program"):
        shown = page.get_by_text(words, exact=words == "program").locator("visible=true")
        expect(shown).to_have_count(0)
    expect(page.get_by_role("button", name="Open the graph and its conflicts")).to_be_disabled()

    page.get_by_role("button", name="Cancel", exact=True).click()
    said(page, "loading t7b: cancelled")
    expect(page.get_by_text("dimension graph · 31 of 31 names")).to_be_visible()
    expect(page.get_by_text("Arguments (4)")).to_be_visible()
    expect(page.get_by_text("sizes of attention")).to_be_visible()
    expect(page.locator(".subject")).to_have_text("attentiondata=4,model=2 · tpu-v5e")
    expect(page).to_have_title("attention · TOAST Lab")
    expect(page).to_have_url(re.compile(r"model=attention&"))
    expect(chosen_cards(page)).to_have_text([re.compile("^attention")])


def chosen_cards(page: Page) -> Locator:
    return page.locator("button.bk-btn-primary:visible", has_text=" names · ")


def test_a_solved_case_opens_with_its_plan(load_page: Page) -> None:
    page = load_page
    expect(page.get_by_text("TOAST Lab shards models.")).to_be_visible()
    assert filled(page) == ["Learn in five minutes"]
    page.get_by_role("button", name=re.compile("^Solved: mlp")).click()
    expect(page.get_by_text("Two matrix products on eight devices")).to_be_visible(timeout=SLOW)
    expect(page.locator("ol.chain li:visible", has_text="U->model")).to_be_visible(timeout=SLOW)
    expect(page.locator("ol.chain li:visible", has_text="B->data")).to_be_visible()


def filled(page: Page) -> list[str]:
    """Names of the highlighted buttons, without the active one of the navigation."""
    buttons = page.locator("button:not(.bk-active):visible")
    return buttons.evaluate_all(
        """(buttons) => buttons
          .filter((b) => getComputedStyle(b).backgroundColor === 'rgb(31, 111, 235)')
          .map((b) => b.textContent.trim())"""
    )


def test_a_program_is_pasted(load_page: Page) -> None:
    page = load_page
    page.get_by_role("button", name="My model", exact=True).click()
    page.get_by_placeholder(re.compile("^or paste StableHLO")).fill(GOOD)
    page.get_by_role("button", name="Read what was pasted").click()
    said(page, "Loaded pasted")
    expect(page.get_by_text("TOAST Lab shards models.")).not_to_be_visible()
    expect(page.get_by_role("gridcell", name="f32[64, 32]")).to_be_visible()


def test_reports_are_shown_in_full(load_page: Page) -> None:
    page = load_page
    page.get_by_role("button", name=re.compile("^attention")).click()
    expect(page.get_by_text("TOAST Lab shards models.")).not_to_be_visible()
    page.get_by_label("axes and sizes").fill("data=7")
    page.get_by_role("button", name="Use this mesh and machine").click()
    page.get_by_text(re.compile(r"^Sizes \(4\)")).click(timeout=SLOW)
    page.get_by_role("button", name="In full", exact=True).click()
    expect(page.locator("canvas:visible")).to_have_count(0)
    for words in ("no axis", "remedy"):
        cell = page.get_by_text(words, exact=True).locator("visible=true").first
        expect(cell).to_be_visible()
    cut = page.locator(".tabulator-cell:visible").evaluate_all(
        "(c) => c.filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    )
    assert cut == 0, "no text is cut off"
    page.get_by_role("button", name="Graph", exact=True).click()
    expect(page.locator("canvas").locator("visible=true").first).to_be_visible()


def test_a_model_that_is_sharded_already_is_audited(load_page: Page) -> None:
    page = load_page
    audit = page.get_by_role("button", name="Audit it as it is sharded")
    expect(audit).to_have_count(0)
    open_own(page)
    fn, args = programs.lost_in_reshape(False)
    drop(page, "step.mlir", from_jax(fn, *args).stablehlo.encode())
    expect(page.get_by_text("10 shardings of its own, on data=4,model=4.")).to_be_visible(
        timeout=SLOW
    )
    page.get_by_label("compile for").locator("visible=true").select_option("nothing: price alone")
    page.get_by_label("and search for a better plan").uncheck()
    audit.click()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_enabled()
    said(page, "auditing step as it is sharded: done in")
    code = page.locator("pre:visible", has_text="jax.lax.with_sharding_constraint(tokens")
    expect(code).to_be_visible(timeout=SLOW)
    code.click()
    selected = page.evaluate("getSelection().toString()")
    assert selected.startswith("tokens = jax.lax.with_sharding_constraint"), "ready to be copied"
    # The last tab is beside the button, not under it
    tab = page.locator(".bk-tab:visible", has_text="Audit (1)").bounding_box()
    button = page.get_by_role("button", name="Graph", exact=True).bounding_box()
    assert tab is not None
    assert button is not None
    assert tab["x"] + tab["width"] <= button["x"]

    page.reload()
    expect(page.get_by_text("Audit (1)")).to_be_visible(timeout=SLOW)
    page.get_by_text("Audit (1)").click()
    page.locator(".tabulator-row:visible", has_text="replicated work").click()
    expect(
        page.get_by_text("tokens = x.swapaxes(0, 1)").locator("visible=true").first
    ).to_be_visible(timeout=SLOW)
    expect(page).to_have_url(re.compile("step=graph"))
