"""Damaged trace files: changed bytes, or changed numbers behind a correct checksum.

The number of a mutation is its seed, so that it can be repeated alone. ``try_all`` runs in a child
process: the number reported last identifies a mutation that kills or hangs the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import toast_lab as tl
from toast_lab import isolate
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.search import trace_file
from toast_lab.search.retrace import replay
from toast_lab.search.trace import Trace

MESH = {"a": 2, "b": 4}
BUDGET = tl.Budget(seconds=None, evaluations=40)
#: (method, evaluations, options, pins) of searches that write a trace; mcts stops in its tree, in
#: refinement and at its end.
CASES = {
    "mcts": ("mcts", 400, {}, ()),
    "mcts refining": ("mcts", 3000, {}, ()),
    "mcts solving": ("mcts", 300, {"trajectories": 64, "refine": 4, "restarts": 0}, ()),
    "mcts pinned": ("mcts", 2000, {"depth": 6}, ("D->a",)),
    "automap": ("automap", 300, {}, ()),
    "alpa": ("alpa", 60, {}, ()),
    "beam": ("beam", 200, {}, ()),
    "random": ("random", 200, {}, ()),
    "exhaustive": ("exhaustive", 100, {}, ()),
    "manual": ("manual", 100, {"actions": ("D->a", "H1->b")}, ()),
}


def make_problem(pins: tuple[str, ...]) -> tl.Problem:
    """The problem of every case, with its pins."""
    problem = tl.Problem(tl.analyse(tl.load("attention")), MESH)
    return problem.what_if(pins) if pins else problem


def searched(name: str) -> tl.SearchResult:
    """Run the search of a case."""
    method, evaluations, options, pins = CASES[name]
    return tl.search(
        make_problem(pins), method, 0, tl.Budget(seconds=None, evaluations=evaluations), **options
    )


# -- changed bytes ---------------------------------------------------------------------------------


def _bytes_mutated(data: bytes, rng: np.random.Generator) -> bytes:
    n, kind = len(data), int(rng.integers(7))
    begin, length = int(rng.integers(n)), int(rng.integers(1, max(2, n // 8)))
    if kind <= 1:
        changed = bytearray(data)
        for place in rng.integers(n, size=int(rng.integers(1, 9))):
            changed[int(place)] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    block = data[begin : begin + length]
    return {
        2: data[:begin],
        3: data[:begin] + data[begin + length :],
        4: data[:begin] + block + data[begin:],
        5: data[:begin] + bytes(len(block)) + data[begin + length :],
        6: data + rng.bytes(length),
    }[kind]


# -- changed numbers -------------------------------------------------------------------------------


def _numbers_mutated(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Change, rename or remove one array of the dictionary, in place."""
    names = sorted(arrays)
    name = names[int(rng.integers(len(names)))]
    array = arrays[name].copy()
    kind = int(rng.integers(13))
    flat = array.reshape(-1)
    position = int(rng.integers(flat.size)) if flat.size else -1
    if kind == 0:
        arrays[name] = array[: int(rng.integers(len(array) + 1))] if array.ndim else array
    elif kind == 1:
        arrays[name] = np.concatenate([array, array[: 1 + len(array) // 2]])
    elif kind == 2:
        arrays[name] = array.astype(
            rng.choice(["f8", "i8", "i4", "u8", "?", "f4", "i1", ">i4", "S3", "c16"])
        )
    elif kind == 3:
        del arrays[name]
    elif kind == 4:
        other = names[int(rng.integers(len(names)))]
        arrays[name], arrays[other] = arrays[other], arrays[name]
    elif kind == 5:
        arrays[f"{name}{rng.choice(['x', '.more', '2'])}"] = array
    elif kind == 6:
        arrays[name] = array.reshape(1, *array.shape)
    elif position < 0:
        arrays[name] = np.ones(3, array.dtype)
    elif kind == 7:
        with np.errstate(over="ignore", invalid="ignore"):
            flat[position] = (
                np.nan if array.dtype.kind == "f" else flat[position] + array.dtype.type(1)
            )
        arrays[name] = array
    elif kind == 8:
        is_integer = array.dtype.kind in "iu"
        extremes = (
            [np.iinfo(array.dtype).max, np.iinfo(array.dtype).min]
            if is_integer
            else [np.inf, -np.inf, -1.0, 1e308]
        )
        flat[position] = True if array.dtype == bool else extremes[int(rng.integers(len(extremes)))]
        arrays[name] = array
    elif kind == 9:
        arrays[name] = rng.permutation(flat).reshape(array.shape)
    elif kind == 10:
        arrays[name] = np.zeros_like(array)
    elif kind == 11:  # a few bits anywhere
        raw = (
            array.view(np.uint8).reshape(-1)
            if array.dtype != bool
            else array.reshape(-1).view(np.uint8)
        )
        for place in rng.integers(raw.size, size=3):
            raw[place] ^= 1 if array.dtype == bool else np.uint8(1 << int(rng.integers(8)))
        arrays[name] = array
    else:
        arrays[name] = array[::-1].copy()


def _header_mutated(header: dict, rng: np.random.Generator) -> None:
    about, kind = header["about"], int(rng.integers(9))
    keys = sorted(about)
    key = keys[int(rng.integers(len(keys)))]
    strange = [
        None,
        -1,
        1e308,
        "x",
        [],
        {},
        True,
        10**30,
        0,
        [[1]],
        {"depth": 10**9},
        {"depth": "x"},
        {"none": 1},
    ]
    if kind == 0:
        del about[key]
    elif kind <= 2:
        about[key] = strange[int(rng.integers(len(strange)))]
    elif kind == 3:
        about["options"] = {
            **about["options"],
            str(rng.choice(["depth", "refine", "width", "threads"])): 10**9,
        }
    elif kind == 4:
        header["vocabulary"] = [str(w) for w in rng.permutation(header["vocabulary"])] or [1]
    elif kind == 5:
        header["vocabulary"] = header["vocabulary"][: len(header["vocabulary"]) // 2] + ["x"] * int(
            rng.integers(3)
        )
    elif kind == 6:
        header["best_actions"] = [
            str(rng.choice(["D->b", "x", "S@9->a", "S@1->a", "S@999999999999->a"]))
        ]
    elif kind == 7:
        part = sorted(header)[int(rng.integers(len(header)))]
        header[part] = strange[int(rng.integers(len(strange)))]
    else:
        about["seed"] = int(rng.integers(2**62))


def mutated(data: bytes, number: int) -> bytes:
    """Return mutation ``number`` of a file: every third one changes bytes, the others numbers."""
    rng = np.random.default_rng(number)
    if number % 3 == 0:
        return _bytes_mutated(data, rng)
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays.pop("header").tobytes())
    header.pop("checksum", None)
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.25 and isinstance(header.get("about"), dict) and header["about"]:
            _header_mutated(header, rng)
        elif arrays:
            _numbers_mutated(arrays, rng)
    return written(header, arrays)


def written(header: object, arrays: dict[str, np.ndarray]) -> bytes:
    """Return a trace file with a correct checksum."""
    if isinstance(header, dict):
        header = {**header, "checksum": trace_file.checksum(header, arrays)}
    target = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez_compressed(target, header=text, **arrays)
    return target.getvalue()


def bomb(data: bytes, n_bytes: int) -> bytes:
    """Return a trace file with one more array: a small file that unpacks to ``n_bytes``."""
    target = io.BytesIO()
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file,
        zipfile.ZipFile(io.BytesIO(data)) as old,
    ):
        for info in old.infolist():
            file.writestr(info, old.read(info))
        with file.open("memory.more.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(
                stream, {"descr": "|u1", "fortran_order": False, "shape": (n_bytes,)}
            )
            for _ in range(n_bytes // 2**20):
                stream.write(bytes(2**20))
    return target.getvalue()


# -- outcomes --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one mutation: "refused", "works", "refused unclearly" or "failed"."""

    number: int
    kind: str
    message: str


def try_all(name: str, data: bytes, numbers: list[int]) -> None:
    """Report an ``Outcome`` for each mutation of a case's file; runs in a child process."""
    _, _, options, pins = CASES[name]
    problem = make_problem(pins)
    options = {k: v for k, v in options.items() if not isinstance(v, int)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        path.write_bytes(data)
        # Compiles all kernels, and shows that the undamaged trace can be resumed
        _go_on(problem, path, options)
        for number in numbers:
            isolate.report(number)
            path.write_bytes(mutated(data, number))
            try:
                _go_on(problem, path, options)
                outcome = Outcome(number, "works", "")
            except InvalidProblem as error:
                clear = str(path) in str(error) or "cannot be resumed here" in str(error)
                outcome = Outcome(number, "refused" if clear else "refused unclearly", str(error))
            except Exception as error:
                outcome = Outcome(number, "failed", f"{type(error).__name__}: {error}")
            isolate.report(outcome)


def go_on(name: str, path: str) -> None:
    """Resume the search from a case's file."""
    tl.search(make_problem(CASES[name][3]), budget=BUDGET, resume=path)


def _go_on(problem: tl.Problem, path: Path, options: dict) -> None:
    """Do everything that can be done with a trace.

    Look at it, resume its search, replay it, save it and read it back.
    """
    trace = Trace.load(path)
    assert len(list(trace.simulations)) == trace.row.n
    assert len(list(trace.nodes)) == trace.node.n
    result = tl.search(problem, budget=BUDGET, resume=os.fspath(path), **options)
    result.plan.check()
    assert np.isfinite(result.refined.cost.score)
    if result.method != "manual":
        assert (
            abs(result.trace.simulations[-1].best_score - result.refined.cost.score)
            <= 1e-6 * result.refined.cost.score
        )
    # Replaying refuses a trace with an action that changes nothing
    with contextlib.suppress(InvalidPlan):
        list(replay(problem, result.trace))
    result.trace.save(path)
    Trace.load(path)
