"""The task with which the tour ends: executing the plan by hand on virtual devices."""

from __future__ import annotations

from toast_lab.app.items import MANUAL
from toast_lab.app.session import Session
from toast_lab.app.tour.step import TourScene, TourTask
from toast_lab.views.compare_table import seconds_text

ROWS = 2048
#: small enough for a CPU that plays eight devices
EIGHT_DEVICES = TourScene("xxt", "s=8", (("rows", ROWS), ("columns", 512)))


def _has_run(session: Session) -> bool:
    item = session.plans.named(MANUAL)
    return item is not None and item.run is not None


def _result(session: Session) -> str:
    item = session.plans.named(MANUAL)
    assert item is not None
    run = item.run
    agrees = run.certificate is not None and run.certificate.passed
    return (
        f"A step took {seconds_text(run.median_s)} on {session.loaded.problem.mesh.n_devices} "
        f"virtual devices, and its results {'agree' if agrees else 'do not agree'} with the "
        "unsharded program's. Devices that share one CPU are no faster than it is: such a run "
        "shows that the plan is right, and the price how fast it is where there are real devices."
    )


RUN_PLAN = TourTask(
    ask=lambda session: "Press **Execute**, on the right.",
    done=_has_run,
    do=lambda session: session.plans.start_runs([MANUAL]),
    after=_result,
)
