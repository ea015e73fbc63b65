"""What a newcomer reads first: what this is, three ways in, and the place for their own model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import assets, look
from toast_lab.app.model_loading import MAX_UPLOAD_BYTES
from toast_lab.app.session import Session
from toast_lab.app.tour_strip import start_button
from toast_lab.app.upload import Upload
from toast_lab.views.markup import h, quiet

ABOUT = (
    "It reads a program (JAX, torch, StableHLO), finds out which dimensions of its tensors can be "
    "cut together, and answers: how to shard it over your devices, how long a step will take, and "
    "whether it fits."
)
UPLOAD_HELP = (
    "Drop a file here, or click to choose one: StableHLO (text or bytecode) or a jax.export "
    f"artefact, up to {MAX_UPLOAD_BYTES // 2**20} MiB. It is read in a process of its own and "
    "never run. A machine file (.toml) goes to the field on the right."
)
OWN_HELP = (
    "A Python model: start the server with it, toast-lab serve my_file.py:make, where make() "
    "returns (fn, args)."
)


def _door(width: int) -> dict[str, Any]:
    return {"width": width, "height": 33}


class Welcome(look.Pane):
    """A sentence and three doors (buttons); the second one opens the place for the user's model.

    Attributes:
        own: that place; hidden until the user asks for it.
        doors: sentence and doors, which are hidden once a model is chosen.
    """

    def __init__(
        self,
        session: Session,
        take_file: Callable[[str, bytes], None],
        refuse: Callable[[str, int], None],
        *,
        show_billions: Callable[[], None],
        python_help: str = OWN_HELP,
    ) -> None:
        super().__init__()
        self.upload = Upload(take_file, refuse, words=UPLOAD_HELP)
        self.pasted = pn.widgets.TextAreaInput(
            placeholder="or paste StableHLO here: module { func.func public @main(… ",
            rows=3,
            max_length=MAX_UPLOAD_BYTES,
            **look.FIELD,
        )
        read = look.button(
            "Read what was pasted",
            lambda: take_file("pasted.mlir", str(self.pasted.value_input).encode()),
        )
        about_python = look.text(quiet(python_help))
        # Why code is refused is shown to everybody; how to bring code, to those who have some.
        everybody = [] if python_help == OWN_HELP else [about_python]
        self.own = look.withhold(
            look.column(visible=False),
            lambda: [
                look.row(self.upload, pn.Spacer(width=8), look.column(self.pasted, read)),
                *([] if everybody else [about_python]),
            ],
        )
        gap = pn.Spacer(width=8)
        self.learn = start_button(
            session, "Learn in five minutes", button_type="primary", **_door(190)
        )
        self.mine = look.button("My model", self.toggle_own, **_door(110))
        self.billions = look.button("See a 2-billion-parameter model sharded", show_billions)
        self.doors = look.column(
            look.text(h("p", h("b", "TOAST Lab shards models. "), ABOUT)),
            look.row(self.learn, gap, self.mine, gap.clone(), self.billions),
            *everybody,
        )
        self.view = look.column(self.doors, self.own, stylesheets=[assets.sheet("welcome")])

    def toggle_own(self) -> None:
        """Show the place for the user's own model, or hide it."""
        self.own.visible = not self.own.visible
        self._fold()

    def leave(self) -> None:
        """A model was chosen: make room for it."""
        self.doors.visible = self.own.visible = False
        self._fold()

    def _fold(self) -> None:
        self.view.visible = bool(self.doors.visible or self.own.visible)
