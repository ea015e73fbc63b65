"""The plan made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import param

from toast_lab.app.items import MANUAL, ActionPrice, PlanItem
from toast_lab.app.loaded import LoadedState, Selection
from toast_lab.app.notices import Notices
from toast_lab.app.plan_store import PlanStore
from toast_lab.app.searches import Searches
from toast_lab.app.state_part import StatePart
from toast_lab.app.trail import Actions, Trail
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.explain.plan_by_hand import PlanAfterAction, plans_after_actions, replay, with_side
from toast_lab.sharding.plan import ShardingPlan, no_effect, plan_of_actions
from toast_lab.sharding.space import Action

#: budget of a search asked for beside the plan by hand; most end sooner, since they converge
ASKED_SEARCH_S = 6.0
MAX_MOVES = 16  #: settings of one colour's bits that are offered, at most


class HandPlan(StatePart):
    """The plan called ``manual``: every program and mesh has one, with a trail of its own."""

    trails: Any = param.Dict(default={}, doc="Trails by the program's digest and the mesh")

    def __init__(
        self,
        loaded: LoadedState,
        selection: Selection,
        plans: PlanStore,
        searches: Searches,
        notices: Notices,
    ) -> None:
        super().__init__()
        self._loaded, self._selection, self._plans = loaded, selection, plans
        self._searches, self._notices = searches, notices
        self._memo: tuple[Problem | None, dict[Actions, PlanAfterAction]] = (None, {})

    @property
    def _problem(self) -> Any:
        return self._loaded.problem

    # -- reading -----------------------------------------------------------------------------------
    @property
    def trail(self) -> Trail:
        """The versions of the plan by hand."""
        return self.trails.get(self._trail_key(), Trail()) if self._problem is not None else Trail()

    def _trail_key(self) -> tuple[str, str]:
        return self._loaded.digest, str(self._problem.mesh)

    @property
    def actions(self) -> Actions:
        """Actions of the plan by hand so far."""
        return self.trail.now

    def plans_after_actions(self, actions: Actions | None = None) -> tuple[PlanAfterAction, ...]:
        """The unsharded program, then each action with its effect.

        The actions are those of the plan by hand, unless another list is given.
        """
        if self._problem is None:
            return ()
        problem: Problem = self._problem
        if self._memo[0] is not problem or len(self._memo[1]) > 1000:
            self._memo = (problem, {})
        return plans_after_actions(
            problem, self.actions if actions is None else actions, self._memo[1]
        )

    def best_searched(self) -> PlanItem | None:
        """The best plan that a search found for this mesh and machine.

        Those that fit come first.
        """
        return _best(self._plans.searched())

    def next_of(self, item: PlanItem) -> str | None:
        """The next action of another plan that the plan by hand could take, if any.

        That is the other plan's first action that the plan by hand lacks and that would change it.
        """
        by_hand = self.actions
        for action in item.plan.actions:
            if action not in by_hand:
                _, replayed, _ = replay(self._problem, [*by_hand, action])
                if len(replayed) > len(by_hand):
                    return action
        return None

    def take_next(self, item: PlanItem) -> None:
        """Take over the next action of another plan."""
        with self._notices.guarded():
            action = self.next_of(item)
            if action is None:
                raise InvalidPlan(
                    f"{item.name} has no action left that would change the plan by hand"
                )
            self.take([*self.actions, action])
            self._say_actions()

    def ask_search(self) -> None:
        """Search for a few seconds for the best sequence of actions on this problem, as a job."""
        self._searches.start_with(
            method="mcts", seconds=ASKED_SEARCH_S, evaluations=None, options={"refine": 0}
        )

    def adviser(self) -> PlanItem | None:
        """The best plan made of actions alone that a search found for this mesh and machine.

        Without such a plan, the best one that a search found.
        """
        if self._problem is None:
            return None
        searched = self._plans.searched()
        return _best([item for item in searched if item.of_actions] or searched)

    def branches(self) -> list[PlanItem]:
        """Plans that can be continued by hand: of this mesh, and made of actions."""
        return [
            item
            for item in self._plans.items
            if item.name != MANUAL
            and item.problem.mesh == self._problem.mesh
            and item.plan.actions
            and item.of_actions
        ]

    def action_prices(self) -> list[ActionPrice]:
        """Every way to shard the selected colour, on top of the manual plan."""
        group, problem = self._selection.group, self._problem
        if group is None or problem is None:
            return []
        space = problem.space
        state, _, _ = replay(problem, self.actions)
        pricer, bit_count = problem.pricer(), len(problem.analysis.groups[group].resolutions)
        rows = []
        for move in np.flatnonzero(space.group == group)[:MAX_MOVES]:
            bits = int(space.bits[move])
            for axis_index, axis in enumerate(problem.mesh.axes):
                next_state = state.copy()
                if problem.mesh.sizes[axis_index] > 1 and next_state.apply(
                    Action(group, bits, axis_index)
                ):
                    quick = pricer.quick(next_state)
                    side = f", side {bits:0{bit_count}b}" if bit_count else ""
                    rows.append(
                        ActionPrice(
                            axis=axis,
                            bits=bits,
                            side=side,
                            time_s=quick.time_s,
                            peak_bytes=quick.peak_bytes,
                            fits=quick.fits,
                        )
                    )
        return sorted(rows, key=lambda price: (problem.mesh.axes.index(price.axis), price.bits))

    def why_no_action(self) -> str:
        """Why the selected colour has nothing left to shard."""
        group, problem = self._selection.group, self._problem
        if group is None or problem is None:
            return ""
        colour = problem.analysis.groups[group]
        if not colour.shardable:
            return f"{colour.name} cannot be sharded: no op can be split along it."
        size = f"{colour.name} has size {colour.size}, or uses them all already."
        return f"No axis of {problem.mesh} would change anything: {size}"

    def refusals(self, offered: Sequence[ActionPrice]) -> list[str]:
        """The reason for every axis on which the selected colour has no action left."""
        group, problem = self._selection.group, self._problem
        if group is None or problem is None or not problem.analysis.groups[group].shardable:
            return []
        offered_axes = {row.axis for row in offered}
        bits = problem.space.bits[problem.space.group == group]
        return [
            no_effect(problem.space, Action(group, int(bits[0]), axis_index))
            for axis_index, (axis, size) in enumerate(
                zip(problem.mesh.axes, problem.mesh.sizes, strict=True)
            )
            if size > 1 and axis not in offered_axes
        ]

    # -- doing -------------------------------------------------------------------------------------
    def add_action(self, axis: str, bits: int = 0) -> None:
        """Shard the selected colour along ``axis`` in the manual plan."""
        group, problem = self._selection.group, self._problem
        if group is None or problem is None:
            self._notices.say(
                "Select a name or a conflict first: an action shards its colour.", "error"
            )
            return
        with self._notices.guarded():
            action = Action(group, bits, problem.mesh.axes.index(axis))
            self.take([*self.actions, action])
            self._say_actions()

    def choose_side(self, resolution: int, axis: str, side: int | None) -> None:
        """Settle a conflict on an axis: shard side 0 or 1 of it, or neither.

        An action that is already in the list keeps its place; later ones that then change nothing
        are left out, and the message says so.
        """
        if self._problem is None:
            return
        with self._notices.guarded():
            wanted_actions = with_side(
                problem=self._problem,
                actions=self.actions,
                resolution=resolution,
                axis=axis,
                side=side,
            )
            _, replayed, left_out = replay(self._problem, wanted_actions)
            self.take(replayed)
            summary = f"manual plan: {', '.join(self.actions) or 'no action'}"
            self._notices.say(
                "; ".join([summary, *(f"left out: {reason}" for reason in left_out)]),
                "info" if left_out else "good",
            )

    def undo(self) -> None:
        """Undo the last change of the manual plan."""
        self._move(self.trail.undo())

    def redo(self) -> None:
        """Redo the change that was undone last."""
        self._move(self.trail.redo())

    def branch(self, name: str = "", at: int | None = None) -> None:
        """Keep the plan by hand under a name, and continue from its first ``at`` actions.

        With ``at`` None, continue from all of them.
        """
        actions, problem = self.actions, self._problem
        with self._notices.guarded():
            if problem is None or not actions:
                raise InvalidPlan(
                    "there is no plan by hand to keep yet: shard a colour on an axis first"
                )
            name = name.strip() or "by hand"
            if name in (MANUAL, "unsharded"):
                raise InvalidPlan(f'"{name}" is taken; give the branch another name')
            with param.parameterized.batch_call_watchers(self._plans):
                kept_as = self._plans.free_name(name)
                plan = plan_of_actions(problem.space, actions)
                item = self._plans.add(kept_as, "by hand", plan)
                kept_actions = actions if at is None else actions[:at]
                self.take(list(kept_actions))
            onward = (
                f"; continuing from {', '.join(kept_actions) or 'unsharded'}"
                if kept_actions != actions
                else ""
            )
            self._notices.say(
                f"Kept {item.name}: {', '.join(actions)}{onward}. It is in the comparison now.",
                "good",
            )

    def go_on_from(self, name: str) -> None:
        """Make the actions of another plan the plan by hand; undo restores the previous ones."""
        with self._notices.guarded():
            item = next((item for item in self.branches() if item.name == name), None)
            if item is None:
                raise InvalidPlan(
                    f"{name} is not made of actions on {self._problem.mesh}, so nothing can be "
                    "added to it"
                )
            self.take(list(item.plan.actions))
            self._say_actions()

    def change_names(self, change: Callable[[str], str]) -> None:
        """Bring the trails of the loaded program up to date after colours were renamed."""
        self.trails = {
            key: trail.changed(change) if key[0] == self._loaded.digest else trail
            for key, trail in self.trails.items()
        }

    def take(self, actions: list[Any]) -> None:
        """Make these the actions of the manual plan."""
        trail, key = self.trail, self._trail_key()
        plan = plan_of_actions(self._problem.space, actions)
        self.trails[key] = trail.to(plan.actions)
        self._show_manual(plan)

    def _move(self, trail: Trail) -> None:
        if self._problem is None or trail is self.trail:
            return
        with self._notices.guarded():
            plan = plan_of_actions(self._problem.space, trail.now)
            self.trails[self._trail_key()] = trail
            self._show_manual(plan)
            self._notices.say(f"manual plan: {', '.join(trail.now) or 'no action'}")

    def _say_actions(self) -> None:
        self._notices.say(f"manual plan: {', '.join(self.actions)}", "good")

    def _show_manual(self, plan: ShardingPlan) -> None:
        self._plans.add(MANUAL, "taken in the graph", plan)

    def renew(self) -> None:
        """Price the plan by hand again, for a new problem."""
        if self.actions:
            self._show_manual(plan_of_actions(self._problem.space, self.actions))

    def forget(self) -> None:
        """Forget the plan of this program and mesh, with its versions."""
        self.trails.pop(self._trail_key(), None)
        self._plans.remove(MANUAL)


def _best(items: list[PlanItem]) -> PlanItem | None:
    """The fastest plan that fits, or else the fastest."""
    return min(items, key=lambda item: (not item.cost.fits, item.cost.time_s), default=None)
