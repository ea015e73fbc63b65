"""Make the results of searches, races and advices plans of the session."""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.advice.advice_result import AdviceRow
from toast_lab.app.items import PlanItem
from toast_lab.app.session import Session
from toast_lab.cost.problem import price
from toast_lab.errors import InvalidPlan
from toast_lab.jobs.load_job import LoadedModel
from toast_lab.jobs.race_job import RaceState
from toast_lab.sharding import plan_file
from toast_lab.sharding.plan import plan_of_actions


def race_name(race: RaceState, method: str) -> str:
    """Name of a method's plan in the comparison."""
    return f"{method} (race, seed {race.seed})"


def race_items(race: RaceState) -> list[PlanItem]:
    """The best plan of each method of a race, for the comparison."""
    if race.result is None or race.problem is None:
        return []
    return [
        PlanItem(
            race_name(race, method), "race", plan, race.problem, cost=race.result.costs[method]
        )
        for method, plan in race.result.race.plans.items()
    ]


def race_to_compare(session: Session) -> None:
    """Add the best plan of each method that raced to the comparison."""
    items = race_items(session.searches.race)
    session.plans.bring(*items)
    race = session.searches.race
    best = race.result.race.best if race.result is not None else None
    session.plans.wanted = race_name(race, best.method) if best is not None else ""
    session.notices.say(f"{len(items)} plans of the race are in the comparison now.", "good")
    session.step = "compare"


def path_to_compare(session: Session, actions: Sequence[str], name: str) -> None:
    """Add a plan of the search tree to the comparison."""
    problem = session.searches.problem
    if problem is not None:
        with session.notices.guarded():
            plan = plan_of_actions(problem.space, list(actions))
            name, cost = session.plans.free_name(name), price(problem, plan)
            session.plans.bring(PlanItem(name, "search tree", plan, problem, cost=cost))
            session.notices.say(f"Added the plan {name}: {', '.join(plan.actions)}", "good")
            session.step = "compare"


def path_to_graph(session: Session, actions: Sequence[str]) -> None:
    """Make a plan of the search tree the manual plan, to continue with it in the graph."""
    problem = session.searches.problem
    if problem is None or session.loaded.problem is None:
        return
    with session.notices.guarded():
        if problem.mesh != session.loaded.problem.mesh:
            mesh = session.loaded.problem.mesh
            raise InvalidPlan(f"the search was on the mesh {problem.mesh}; the mesh is {mesh} now")
        session.hand.take(list(actions))
        session.notices.say(f"manual plan: {', '.join(session.hand.actions)}", "good")
        session.step = "graph"


def set_up_to_compare(session: Session, row: AdviceRow) -> None:
    """Take the mesh and the program of an advised set-up, and add its plan to the comparison."""
    state, terms, choice = session.mesh_advice.state, row.terms, row.choice
    limit_gib = terms.memory_limit_bytes / 2**30
    settings = {
        "mesh": str(row.mesh),
        "machine": terms.machine.name,
        "memory_gib": None if terms.memory_limit_bytes == terms.machine.memory_bytes else limit_gib,
    }
    saved = plan_file.to_json(row.plan)
    loaded = session.loaded
    with session.notices.guarded():
        is_as_written = not choice.policies and choice.parts == 1
        # All programs of a function share their lowerings
        if is_as_written and loaded.model.lowerings is state.model.lowerings:
            session.set_problem(**settings)
        else:
            model = state.model_of(row)
            analysis = choice.base.analysis.of_model(model)
            session.show(LoadedModel(model, analysis), settings=settings)
        plan = plan_file.from_json(saved, loaded.analysis, loaded.problem.mesh)
        item = session.plans.add(session.plans.free_name(f"advised {row.shape}"), "advice", plan)
        session.plans.wanted = item.name
        session.step = "compare"
