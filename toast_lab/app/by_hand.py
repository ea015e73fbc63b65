"""The plan made by hand: a part of the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import param

from toast_lab.app.items import MANUAL, ActionPrice, PlanItem
from toast_lab.app.trail import Actions, Trail
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.explain.taken import Taken, replay, taken, with_side
from toast_lab.ir.program import Program
from toast_lab.sharding.plan import ShardingPlan, no_effect, plan_of_actions
from toast_lab.sharding.space import Action

#: of a search that is asked for beside the plan by hand; most end sooner, since they converge
ASKED_S = 6.0
MAX_MOVES = 16  #: settings of one colour's bits that are offered at once


class ByHand:
    """What a session does for the plan called ``manual``.

    Every program and mesh has one, with a trail of its own.
    """

    problem: Any
    plans: Any
    _trails: dict[tuple[str, str], Trail]
    _digest: tuple[Program | None, str]
    _memo: tuple[Problem | None, dict[Actions, Taken]]
    selected_group: Any  # a property there
    say: Callable[..., None]
    guarded: Callable[[], AbstractContextManager[None]]
    plan_named: Callable[[str], PlanItem | None]
    _add: Callable[..., PlanItem]
    _search: Callable[..., None]

    # -- reading -----------------------------------------------------------------------------------
    @property
    def trail(self) -> Trail:
        """Versions of the plan by hand."""
        return self._trails.get(self._trail_key(), Trail()) if self.problem is not None else Trail()

    @property
    def digest(self) -> str:
        """Digest of the program; the problem has to be there."""
        program = self.problem.analysis.program
        # 15 ms for thousands of ops, and the key is asked for at every turn
        if self._digest[0] is not program:
            self._digest = (program, program.digest())
        return self._digest[1]

    def _trail_key(self) -> tuple[str, str]:
        return self.digest, str(self.problem.mesh)

    @property
    def manual_actions(self) -> Actions:
        """Actions of the plan by hand so far."""
        return self.trail.now

    def taken(self, actions: Actions | None = None) -> tuple[Taken, ...]:
        """The unsharded program, then each action with what it made of it.

        The actions are those of the plan by hand, or of another list.
        """
        if self.problem is None:
            return ()
        problem: Problem = self.problem
        if self._memo[0] is not problem or len(self._memo[1]) > 1000:
            self._memo = (problem, {})
        return taken(problem, self.manual_actions if actions is None else actions, self._memo[1])

    def best_found(self) -> PlanItem | None:
        """The best plan that a search found for this mesh and machine.

        Those that fit come first.
        """
        return min(self._found(), key=lambda p: (not p.cost.fits, p.cost.time_s), default=None)

    def _found(self) -> list[PlanItem]:
        problem = self.problem
        return [
            p
            for p in self.plans
            if p.origin == "search"
            and p.problem.mesh == problem.mesh
            and p.problem.machine == problem.machine
        ]

    def next_of(self, item: PlanItem) -> str | None:
        """The next action of another plan that the plan by hand could take, if any.

        That is the other plan's first action that the plan by hand lacks and that would change it.
        """
        have = self.manual_actions
        for text in item.plan.actions:
            if "->" in text and text not in have:  # what is refined op by op is no action
                _, kept, _ = replay(self.problem, [*have, text])
                if len(kept) > len(have):
                    return text
        return None

    def take_next(self, item: PlanItem) -> None:
        """Take over the next action of another plan."""
        with self.guarded():
            text = self.next_of(item)
            if text is None:
                raise InvalidPlan(
                    f"{item.name} has no action left that would change the plan by hand"
                )
            self.take_by_hand([*self.manual_actions, text])
            self.say(f"manual plan: {', '.join(self.manual_actions)}", "good")

    def ask_search(self) -> None:
        """Search for a few seconds for the best sequence of actions on this problem, as a job."""
        self._search(method="mcts", seconds=ASKED_S, evaluations=None, options={"refine": 0})

    def adviser(self) -> PlanItem | None:
        """The best plan that a search found here and that is made of actions alone.

        Failing that, the best one.
        """
        problem = self.problem
        pure = [p for p in self._found() if all("->" in text for text in p.plan.actions)]
        if problem is None or not pure:
            return self.best_found() if problem is not None else None
        return min(pure, key=lambda p: (not p.cost.fits, p.cost.time_s))

    def branches(self) -> list[PlanItem]:
        """Plans that one can go on from: of this mesh, and made of actions."""
        return [
            p
            for p in self.plans
            if p.name != MANUAL
            and p.problem.mesh == self.problem.mesh
            and p.plan.actions
            and all("->" in text for text in p.plan.actions)
        ]

    def action_prices(self) -> list[ActionPrice]:
        """Every way to shard the selected colour, on top of the manual plan."""
        group, problem = self.selected_group, self.problem
        if group is None or problem is None:
            return []
        space = problem.space
        state, _, _ = replay(problem, self.manual_actions)
        pricer, n = problem.pricer(), len(problem.analysis.groups[group].resolutions)
        rows = []
        for move in np.flatnonzero(space.group == group)[:MAX_MOVES]:
            bits = int(space.bits[move])
            for a, axis in enumerate(problem.mesh.axes):
                after = state.copy()
                if problem.mesh.sizes[a] > 1 and after.apply(Action(group, bits, a)):
                    quick = pricer.quick(after)
                    side = f", side {bits:0{n}b}" if n else ""
                    rows.append(
                        ActionPrice(axis, bits, side, quick.time_s, quick.peak_bytes, quick.fits)
                    )
        return sorted(rows, key=lambda r: (problem.mesh.axes.index(r.axis), r.bits))

    def why_no_action(self) -> str:
        """Why the selected colour has nothing left to shard."""
        group, problem = self.selected_group, self.problem
        if group is None or problem is None:
            return ""
        found = problem.analysis.groups[group]
        if not found.shardable:
            return f"{found.name} cannot be sharded: no op can be split along it."
        size = f"{found.name} has size {found.size}, or it uses them all already."
        return f"No axis of {problem.mesh} changes anything here: {size}"

    def refusals(self, offered: Sequence[ActionPrice]) -> list[str]:
        """For every axis on which the selected colour has no action left, why."""
        group, problem = self.selected_group, self.problem
        if group is None or problem is None or not problem.analysis.groups[group].shardable:
            return []
        there = {row.axis for row in offered}
        bits = problem.space.bits[problem.space.group == group]
        return [
            no_effect(problem.space, Action(group, int(bits[0]), a))
            for a, (axis, size) in enumerate(
                zip(problem.mesh.axes, problem.mesh.sizes, strict=True)
            )
            if size > 1 and axis not in there
        ]

    # -- doing -------------------------------------------------------------------------------------
    def add_action(self, axis: str, bits: int = 0) -> None:
        """Shard the selected colour along ``axis`` in the manual plan."""
        group, problem = self.selected_group, self.problem
        if group is None or problem is None:
            self.say(
                "Select a name or a conflict first: its colour is what an action shards.", "error"
            )
            return
        with self.guarded():
            action = Action(group, bits, problem.mesh.axes.index(axis))
            self.take_by_hand([*self.manual_actions, action])
            self.say(f"manual plan: {', '.join(self.manual_actions)}", "good")

    def choose_side(self, resolution: int, axis: str, side: int | None) -> None:
        """Settle a conflict on an axis: shard side 0 or 1 of it, or neither.

        An action that stands in the list keeps its place; later ones that then change nothing are
        left out, and the message says so.
        """
        if self.problem is None:
            return
        with self.guarded():
            wanted = with_side(self.problem, self.manual_actions, resolution, axis, side)
            _, kept, left_out = replay(self.problem, wanted)
            self.take_by_hand(kept)
            words = f"manual plan: {', '.join(self.manual_actions) or 'no action'}"
            self.say(
                "; ".join([words, *(f"left out: {why}" for why in left_out)]),
                "info" if left_out else "good",
            )

    def undo_action(self) -> None:
        """Take the last change of the manual plan back."""
        self._move(self.trail.undo())

    def redo_action(self) -> None:
        """Make the change again that was taken back last."""
        self._move(self.trail.redo())

    def branch(self, name: str = "", at: int | None = None) -> None:
        """Keep the plan by hand under a name, and go on from its first ``at`` actions.

        ``at`` None: from all of them.
        """
        actions, problem = self.manual_actions, self.problem
        with self.guarded():
            if problem is None or not actions:
                raise InvalidPlan(
                    "there is no plan by hand to keep yet: shard a colour on an axis first"
                )
            name = name.strip() or "by hand"
            if name in (MANUAL, "unsharded"):
                raise InvalidPlan(f'"{name}" is taken; give the branch another name')
            with param.parameterized.batch_call_watchers(self):
                item = self._add(
                    name,
                    "by hand",
                    lambda: plan_of_actions(problem.space, actions),
                    replace=False,
                )
                rest = actions if at is None else actions[:at]
                self.take_by_hand(list(rest))
            on = f"; going on from {', '.join(rest) or 'unsharded'}" if rest != actions else ""
            self.say(
                f"Kept {item.name}: {', '.join(actions)}{on}. It is in the comparison now.", "good"
            )

    def go_on_from(self, name: str) -> None:
        """Take the actions of another plan as the plan by hand; undo brings back what was there."""
        with self.guarded():
            item = next((p for p in self.branches() if p.name == name), None)
            if item is None:
                raise InvalidPlan(
                    f"{name} is not made of actions on {self.problem.mesh}, so nothing can be "
                    "added to it"
                )
            self.take_by_hand(list(item.plan.actions))
            self.say(f"manual plan: {', '.join(self.manual_actions)}", "good")

    def take_by_hand(self, actions: list[Any]) -> None:
        """Make these the actions of the manual plan."""
        before, key = self.trail, self._trail_key()
        plan = plan_of_actions(self.problem.space, actions)
        self._trails[key] = before.to(plan.actions)
        self._show_manual(plan)

    def _move(self, trail: Trail) -> None:
        if self.problem is None or trail is self.trail:
            return
        with self.guarded():
            plan = plan_of_actions(self.problem.space, trail.now)
            self._trails[self._trail_key()] = trail
            self._show_manual(plan)
            self.say(f"manual plan: {', '.join(trail.now) or 'no action'}")

    def _show_manual(self, plan: ShardingPlan) -> None:
        self._add(MANUAL, "taken in the graph", lambda: plan)

    def _renew_manual(self) -> None:
        """Price the plan by hand for a problem that has come anew."""
        if self.manual_actions:
            self._show_manual(plan_of_actions(self.problem.space, self.manual_actions))
