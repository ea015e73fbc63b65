"""Mesh and machine, checked at every keystroke, before anything uses them."""

from __future__ import annotations

import panel as pn

from toast_lab.app import assets, look
from toast_lab.app.session import Session
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.machine_model import Machine
from toast_lab.views.editor_checks import MAX_MACHINE_TEXT, CheckOutcome, check_machine, check_mesh
from toast_lab.views.markup import Safe, h, join, quiet

OWN_MACHINE = "a machine file (TOML) …"


class ProblemPane(look.Pane):
    """The fields, the verdicts on them, and the button that applies them."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

        self.mesh = pn.widgets.TextInput(
            name="axes and sizes", value=session.loaded.mesh, max_length=200, **look.FIELD
        )
        self.machine = pn.widgets.Select(
            name="hardware",
            options=[*MACHINES, OWN_MACHINE],
            value=session.loaded.machine,
            **look.FIELD,
        )
        self.toml = pn.widgets.TextAreaInput(
            name="TOML of the hardware",
            rows=9,
            max_length=MAX_MACHINE_TEXT,
            visible=False,
            sizing_mode="stretch_width",
            margin=(3, 0),
            stylesheets=[look.INPUT + assets.sheet("monospaced")],
        )
        self._mesh_verdict, self._machine_verdict = look.text(), look.text(visible=False)
        self.take = look.button("Use this mesh and machine", self._take, disabled=True)
        self.mesh.param.watch(lambda event: self.check(mesh=event.new), "value_input")
        self.toml.param.watch(lambda event: self.check(toml=event.new), "value_input")
        look.watch(self.machine, self._machine_chosen, "value")
        self.mesh.param.watch(lambda event: self.check(mesh=event.new), "value")
        look.watch(self.mesh, self._take_if_typed, "enter_pressed")
        self.view = look.column(
            look.text(h("h2", "mesh and machine")),
            self.mesh,
            self._mesh_verdict,
            self.machine,
            self.toml,
            self._machine_verdict,
            self.take,
        )
        look.watch(session.loaded, self.follow, "problem", "own_machines")
        self.follow()

    def follow(self) -> None:
        """Show the mesh and the machine that are in force."""
        session = self.session
        names = [*MACHINES, *session.loaded.own_machines, OWN_MACHINE]
        self.machine.param.update(
            options=names,
            value=session.loaded.machine if session.loaded.machine in names else names[0],
        )
        # Set both: as ``value_input`` starts out empty, emptying the field would be no change.
        self.mesh.param.update(value=session.loaded.mesh, value_input=session.loaded.mesh)
        self.check(mesh=session.loaded.mesh)

    def check(self, mesh: str | None = None, toml: str | None = None) -> None:
        """Check the fields and show the verdicts; ``mesh`` and ``toml`` are texts being typed."""
        own_file = self.machine.value == OWN_MACHINE
        typed = str((self.toml.value_input or self.toml.value) if toml is None else toml)
        self._checked_machine = (
            check_machine(typed) if own_file else CheckOutcome(True, (), machine=self._named())
        )
        mesh_text = str(self.mesh.value_input or self.mesh.value) if mesh is None else mesh
        # While another model loads, do not say what the axes divide in the present one
        analysis = None if self.session.loading else self.session.loaded.analysis
        self._checked_mesh = check_mesh(mesh_text, analysis, self._checked_machine.machine)
        self._mesh_verdict.object = words(self._checked_mesh)
        self._machine_verdict.object = words(self._checked_machine)
        self._machine_verdict.visible = self.toml.visible = own_file
        is_valid = self._checked_mesh.good and self._checked_machine.good
        typed_mesh, session = self._checked_mesh.mesh, self.session
        in_force = (
            is_valid
            and not own_file
            and str(typed_mesh) == session.loaded.mesh
            and self.machine.value == session.loaded.machine
        )
        self.take.disabled = not is_valid or in_force
        self.take.button_type = "default" if self.take.disabled else "primary"

    def drop(self, name: str, content: bytes) -> None:
        """Take in a machine file that was dropped on the page.

        It goes into the field, where the user sees it before it is used.
        """
        try:
            toml_text = content[: MAX_MACHINE_TEXT + 1].decode()
        except UnicodeDecodeError:
            self.session.notices.say(
                f"{name} is not a text file, so it is not a machine file", "error"
            )
            return
        self.machine.value = OWN_MACHINE
        self.toml.param.update(value=toml_text, value_input=toml_text)
        self.check(toml=toml_text)
        self.session.notices.say(
            f"{name} is in the field on the right: correct any errors, then press “Use this mesh "
            "and machine”."
        )

    def _named(self) -> Machine | None:
        name = str(self.machine.value)
        return self.session.loaded.own_machines.get(name) or MACHINES.get(name)

    def _machine_chosen(self) -> None:
        own_file = self.machine.value == OWN_MACHINE
        if own_file and not self.toml.value:
            base = MACHINES.get(self.session.loaded.machine) or MACHINES["tpu-v5e"]
            toml_text = base.toml().replace(f'"{base.name}"', '"my machine"', 1)
            self.toml.param.update(value=toml_text, value_input=toml_text)
            self.check(toml=toml_text)
        else:
            self.check()

    def _take_if_typed(self) -> None:
        self.check(mesh=str(self.mesh.value))
        if not self.take.disabled:
            self._take()

    def _take(self) -> None:
        self.check()
        mesh, machine = self._checked_mesh.mesh, self._checked_machine.machine
        if mesh is None or machine is None:
            return
        if self.machine.value == OWN_MACHINE:
            machine = self.session.loaded.keep_machine(machine)
        self.session.set_problem(mesh=str(mesh), machine=machine.name)
        problem = self.session.loaded.problem
        if (
            problem is not None
            and str(problem.mesh) == str(mesh)
            and problem.machine.name == machine.name
        ):
            self.session.notices.say(f"Mesh {mesh}, {machine.name}.", "good")


def words(checked: CheckOutcome) -> Safe:
    """The verdict with its sign, then further remarks."""
    if not checked.lines:
        return Safe("")
    sign = "✓ " if checked.good else "✗ "
    verdict = h("p", sign, checked.lines[0], cls="good" if checked.good else "red", role="status")
    return join(
        [
            verdict,
            *(quiet(line) for line in checked.lines[1:]),
        ]
    )
