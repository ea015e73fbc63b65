"""``toast-lab audit``: audit code that is sharded already; its exit status is for a CI job."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, output
from toast_lab.errors import InvalidInput, ToastError
from toast_lab.text import counted, line_text

if TYPE_CHECKING:
    from toast_lab.audit.audit import Audit


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab audit``."""
    command_options.model(parser)
    parser.add_argument(
        "--mesh", help="the mesh of the code's shardings, such as data=4,model=2 (taken from them)"
    )
    command_options.priced_on(parser, "tpu-v5e, or the machine of --topology")
    parser.add_argument(
        "--topology",
        help='what to compile for, as for "toast-lab compile" (a topology of the machine, or '
        "virtual CPU devices)",
    )
    command_options.flag(parser, "--no-compile", "price the propagated shardings alone")
    command_options.flag(parser, "--confirm", "compile the changes of the first findings, too")
    parser.add_argument(
        "--search-seconds",
        type=command_options.not_negative,
        default=10.0,
        help="seconds of a search for a better plan; 0: none (%(default)g)",
    )
    parser.add_argument(
        "--fail-over",
        type=_share,
        default=0.05,
        metavar="SHARE",
        help="exit with 1 if a finding is worth more than this share of a step (5%%)",
    )
    parser.add_argument(
        "--allow",
        metavar="FILE",
        help='file of findings that are known: one a line, a kind ("uneven-dim"), a source line '
        '("model.py:31") or a part of a title, then " # " and the reason',
    )
    command_options.flag(parser, "--all", "write out every finding")


def run(args: Namespace) -> int:
    """Audit the model; gives 1 if a finding that is not allowed is above ``--fail-over``."""
    common.check_early(args)
    allowed = _allowed(args.allow) if args.allow else []
    audit = _audit(args)
    failing = audit.over(args.fail_over, allowed)

    def show(console: output.Out) -> None:
        print(audit.text(len(audit.findings)) if args.all else audit)
        print()
        if failing:
            console.print(
                f"Failed: {len(failing)} of {counted(len(audit.findings), 'finding')} worth "
                f"{args.fail_over:.0%} of a step, or of its peak: "
                + ", ".join(
                    f"{finding.kind} ({line_text(finding.where) or 'arguments'})"
                    for finding in failing[:8]
                )
            )
        else:
            console.print(
                f"Passed: no finding is worth {args.fail_over:.0%} of a step, or of its peak."
            )

    report = {
        **audit.to_json(),
        "fail_over": args.fail_over,
        "failing": [audit.findings.index(finding) for finding in failing],
    }
    output.emit(args, report, show)
    return 1 if failing else 0


def _audit(args: Namespace) -> Audit:
    from toast_lab.audit.audit import audit_model
    from toast_lab.machines.catalogue import MACHINES, machine
    from toast_lab.runtime.topologies import machine_of
    from toast_lab.sharding.mesh import make_mesh

    mesh = make_mesh(args.mesh) if args.mesh else None
    # User code makes a mesh of devices, which are virtual here
    args.virtual_devices = mesh.n_devices if mesh is not None else 0
    name = args.machine or (machine_of(args.topology, MACHINES) if args.topology else "tpu-v5e")
    args.platform = args.platform or machine(name).compiler
    try:
        model = common.load_model(args)
    except ToastError as error:
        if mesh is None and "devices" in str(error):
            raise InvalidInput(
                f"{error}. Give --mesh, such as --mesh data=4,model=2: the function then sees as "
                "many virtual devices"
            ) from error
        raise
    with output.progress("auditing") as update:
        return audit_model(
            model,
            mesh=mesh,
            machine=args.machine,
            topology=args.topology,
            on_progress=lambda stage: update(None, stage),
            compile=not args.no_compile,
            confirm=args.confirm,
            search=args.search_seconds > 0,
            search_s=args.search_seconds or 1.0,
            time_limit_s=args.time_limit,
            memory_limit_bytes=args.memory_limit,
        )


def _share(text: str) -> float:
    """``5%`` or ``0.05`` as 0.05."""
    number, percent, _ = text.strip().partition("%")
    try:
        share = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < float("inf"):
        raise ArgumentTypeError(f'{text!r} is not a share; give "5%" or 0.05')
    return share


def _allowed(path: str) -> list[str]:
    """Entries of an allow file. Raises InvalidInput for a missing file or an entry without why."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise InvalidInput(f"--allow {path}: {error.strerror}") from None
    entries, offences = [], []
    for number, line in enumerate(lines, 1):
        entry, _, reason = line.partition("#")
        if entry.strip() and not reason.strip():
            offences.append(f"line {number}, {entry.strip()!r}")
        elif entry.strip():
            entries.append(entry.strip())
    if offences:
        raise InvalidInput(
            f"--allow {path}: give a reason after '#' for each entry: {', '.join(offences)}"
        )
    return entries
