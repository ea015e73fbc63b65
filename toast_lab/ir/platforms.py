"""The programs that one function is lowered to for different platforms.

JAX lowers some primitives differently for CPUs, TPUs and GPUs, so a function may have a program for
each. A ``Model`` has one of them and knows for which platforms it is. ``Lowerings``, which all
models of the function share, makes the others when they are asked for, from the trace or, in
another process, from the recipe.

Start reading at ``Lowerings.program``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab import isolate
from toast_lab.errors import FrontendError
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.ir.rounds import Rounds, counting, recounted_notes

if TYPE_CHECKING:
    from toast_lab.ir.program import Program

ALL_PLATFORMS = frozenset(PLATFORMS)


class Parts(NamedTuple):
    """How a plan cuts a function of ``custom_partitioning``: mesh axes per dim of each tensor."""

    mesh: tuple[tuple[str, int], ...]
    operands: tuple[tuple[tuple[str, ...], ...], ...]
    results: tuple[tuple[tuple[str, ...], ...], ...]


class LoweredProgram(NamedTuple):
    """A function's program for some platforms; the fields are those of ``Model``."""

    program: Program
    stablehlo: str
    platforms: frozenset[str]
    notes: tuple[str, ...]


class Lowerings:
    """The programs of one function by platform, each made once.

    Code of wrapped kernels (``frontends.wrapped_kernels``) comes from ``kernel_body``, likewise.

    Pickling keeps ``child`` but neither the trace nor the programs.
    """

    def __init__(
        self,
        lower: Callable[[str], LoweredProgram] | None = None,
        child: tuple[Any, ...] | None = None,
        rounds: tuple[Rounds, ...] = (),
    ) -> None:
        """Without any programs yet.

        Args:
            lower: makes the program of a platform.
            child: function and first arguments for ``isolate.run_in_child``; it makes the program
                where ``lower`` is missing.
            rounds: given to loops of unknown rounds, one after the other.
        """
        self.lower, self.child, self.rounds = lower, child, rounds
        #: (name, shapes and types of operands, platform, parts) -> StableHLO of a wrapped kernel
        self.kernel_body: Callable[..., str] | None = None
        self._bodies: dict[Any, str] = {}
        self.programs: dict[str, LoweredProgram] = {}
        #: analyses of these programs, by platform and the options of the analysis
        self.analyses: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Lowerings, (None, self.child, self.rounds)

    def counting(self, rounds: Rounds, lowered: LoweredProgram) -> Lowerings:
        """The programs with these rounds, of which ``lowered`` is one."""
        lowerings = Lowerings(self.lower, self.child, (*self.rounds, rounds))
        lowerings.programs.update(dict.fromkeys(sorted(lowered.platforms), lowered))
        return lowerings

    def program(self, name: str, platform: str) -> LoweredProgram:
        """The program for ``platform`` of the function that is called ``name``.

        Raises:
            FrontendError: JAX cannot lower the function for this platform, or it is not available.
        """
        if platform not in PLATFORMS:
            raise FrontendError(
                f"platform {platform!r}: programs are for one of {', '.join(PLATFORMS)}"
            )
        if platform not in self.programs:
            lowered = self._counted(self._lowered(name, platform))
            for other in lowered.platforms:
                self.programs.setdefault(other, lowered)
        return self.programs[platform]

    def _counted(self, lowered: LoweredProgram) -> LoweredProgram:
        program = lowered.program
        for rounds in self.rounds:
            program = counting(program, rounds)
        notes = recounted_notes(lowered.notes, lowered.program, program)
        return lowered._replace(program=program, notes=notes)

    def body(
        self,
        name: str,
        shapes: Sequence[tuple[tuple[int, ...], str]],
        parts: Parts | None,
        platform: str,
    ) -> str:
        """StableHLO of the wrapped kernel ``name`` for these operands on a platform.

        ``parts`` is how a function of ``custom_partitioning`` is cut, whose shapes are whole.
        Raises FrontendError if it is not available, or cannot be lowered for them.
        """
        key = (name, tuple(shapes), platform, parts)
        if key not in self._bodies:
            if self.kernel_body is not None:
                self._bodies[key] = self.kernel_body(*key)
            elif self.child is not None:
                self._bodies[key] = isolate.run_in_child(
                    self.child[0],
                    *self.child[1:],
                    platform,
                    (name, tuple(shapes), parts),
                    activity=f"lowering the kernel {name}",
                )
            else:
                raise FrontendError(
                    f"the kernel {name} is not in this process; load the model in it "
                    "(tl.from_jax, tl.load)"
                )
        return self._bodies[key]

    def _lowered(self, name: str, platform: str) -> LoweredProgram:
        if self.lower is not None:
            return self.lower(platform)
        if self.child is not None:
            lowered: LoweredProgram = isolate.run_in_child(
                *self.child,
                platform,
                activity=f"lowering {name} for {platform.upper()}",
            )
            return lowered
        raise FrontendError(
            f"{name} was lowered for another platform than {platform.upper()}, where JAX lowers it "
            "differently, and its function is not in this process. Load it for this platform: "
            f'tl.from_jax(fn, *args, platform="{platform}"), tl.load(..., platform="{platform}")'
        )


def platforms_text(platforms: Iterable[str]) -> str:
    """``TPU and GPU``; empty if these are all platforms."""
    names = [name.upper() for name in PLATFORMS if name in platforms]
    return "" if len(names) == len(PLATFORMS) else " and ".join(names)
