"""Kept rows of comparisons survive whatever happens to the process that writes them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from toast_lab.compare import comparison_store as module
from toast_lab.compare.compare import _kept
from toast_lab.compare.comparison_store import ComparisonStore, keep, record
from toast_lab.compare.result import Certificate, Comparison, ComparisonRow, Predicted
from toast_lab.errors import StoreError
from toast_lab.runtime.hlo import Collective

ROOT = Path(__file__).parents[2]
GATHER = Collective("all_gather", 4096, 2, ("d",), "jit(f)/dot", "model.py:3")


def row(name: str = "fsdp", **changes: Any) -> ComparisonRow:
    certificate = Certificate(
        {"result": 2e-7, "loss": float("nan")}, None, 1e-3, ("outputs",), ("gradients: no",)
    )
    given: dict[str, Any] = {
        "name": name,
        "status": "ok",
        "message": "",
        "mesh": "d=2",
        "devices": "cpu:2",
        "device_kind": "cpu",
        "n_devices": 2,
        "n_processes": 1,
        "batches_s": ((0.25, 0.5), (0.75,)),
        "compile_s": 1.5,
        "argument_bytes": 64,
        "output_bytes": 8,
        "temp_bytes": 4,
        "peak_bytes": 76,
        "allocator_peak_bytes": None,
        "collectives": (GATHER,),
        "certificate": certificate,
        "predicted": Predicted("tpu-v5e", 1e-6, 1e-6, 70.0, {"all_gather": 1}),
        "plan": {"mesh": {"d": 2}, "actions": ["batch->d"], "ops": [1]},
    }
    return ComparisonRow(**{**given, **changes})


def comparison(*rows: ComparisonRow, model: str = "mlp") -> Comparison:
    return Comparison(model, "0123456789abcdef", rows or (row(),), None, "normal", 7, "2 rounds")


def test_rows_come_back_as_they_were_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "runs.sqlite"
    assert keep(
        comparison(row("a"), row("b", status="crashed", batches_s=(), compile_s=None)), path
    ) == (1, 2)
    assert keep(comparison(model="gns"), path) == (3,)
    with ComparisonStore(path) as store:
        rows = store.rows()
        assert [(r["id"], r["model"], r["name"], r["status"]) for r in rows] == [
            (3, "gns", "fsdp", "ok"),
            (2, "mlp", "b", "crashed"),
            (1, "mlp", "a", "ok"),
        ]
        assert [r["id"] for r in store.rows("mlp", limit=1)] == [2]
        assert rows[0]["median_s"] == 0.5
        assert rows[1]["median_s"] is None
        assert rows[0]["seed"] == 7
        assert rows[1]["comparison"] == rows[2]["comparison"] != rows[0]["comparison"]
        whole = store.get(3)
    assert whole["plan"] == row().plan
    assert whole["measured"]["batches_s"] == [[0.25, 0.5], [0.75]]
    assert whole["measured"]["collectives"][0]["source"] == "model.py:3"
    assert whole["certificate"]["outputs"] == {"result": 2e-7, "loss": None}
    assert whole["passed"] is False, "what is not finite does not pass"
    assert whole["predicted"]["collective_counts"] == {"all_gather": 1}
    assert {"toast_lab", "jax", "jaxlib", "numba", "python"} <= set(whole["versions"])
    assert whole["machine"]["device_kind"] == "cpu"
    assert whole["machine"]["host_cpu"]


def test_digests_tell_shardings_and_machines_apart() -> None:
    def digests(**changes: Any) -> tuple[str, str]:
        stored = record(comparison(), row(**changes), "")
        return stored["plan_digest"], stored["machine_digest"]

    plan, machine = digests()
    assert digests(plan={"mesh": {"d": 2}, "actions": [], "ops": [1], "key": "1"}) == (
        plan,
        machine,
    )
    assert digests(plan={"mesh": {"d": 2}, "actions": [], "ops": [2]})[0] != plan
    assert digests(device_kind="NVIDIA H100")[1] != machine


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOAST_LAB_RUNS", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        ComparisonStore.default_path()
        == tmp_path / ".local" / "share" / "toast-lab" / "runs.sqlite"
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert ComparisonStore.default_path() == tmp_path / "data" / "toast-lab" / "runs.sqlite"
    monkeypatch.setenv("TOAST_LAB_RUNS", str(tmp_path / "x"))
    assert ComparisonStore().path == tmp_path / "x"


WRITER = """
import sys
from tests.compare.test_store import comparison, row
from toast_lab.compare.comparison_store import ComparisonStore, record
name, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(count):
    with ComparisonStore(path) as store:
        print(store.add(record(comparison(), row(f"{name}{n}"), name)), flush=True)
"""


def writer(name: str, path: Path, count: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, name, str(path), str(count)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    both = [writer(name, path, 40) for name in ("a", "b")]
    printed = [p.communicate(timeout=60)[0].split() for p in both]
    assert [p.returncode for p in both] == [0, 0]
    with ComparisonStore(path) as store:
        rows = store.rows()
    assert sorted(r["name"] for r in rows) == sorted(f"{p}{n}" for p in "ab" for n in range(40))
    assert sorted(int(i) for ids in printed for i in ids) == list(range(1, 81))


def test_a_killed_writer_leaves_what_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with writer("k", path, 10**6) as process:
        assert process.stdout is not None
        for _ in range(30):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    with ComparisonStore(path) as store:
        rows = store.rows()
        assert store.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(rows) >= last >= 30
        assert [r["name"] for r in reversed(rows)] == [f"k{n}" for n in range(len(rows))]
        assert store.get(last)["plan"] == row().plan
        assert store.add(record(comparison(), row("after"), "x")) > last


def test_a_row_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with ComparisonStore(tmp_path / "r") as store:
        store.connection.execute(
            "CREATE TRIGGER no AFTER INSERT ON runs BEGIN SELECT RAISE(FAIL, 'half way'); END"
        )
        with pytest.raises(StoreError, match=r"cannot write .*half way"):
            store.add(record(comparison(), row(), "x"))
        assert store.rows() == []
        store.connection.execute("DROP TRIGGER no")
        assert store.add(record(comparison(), row(), "x")) >= 1


def read_everything(path: Path) -> None:
    with ComparisonStore(path) as store:
        store.rows()
        for number in range(1, 41):
            store.get(number)


@pytest.mark.parametrize("damage", ["head", "middle"])
def test_a_corrupt_file_is_told_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.sqlite"
    for _ in range(40):
        keep(comparison(), path)
    data = bytearray(path.read_bytes())
    offset = 0 if damage == "head" else 4096
    data[offset : offset + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(
        StoreError, match=r"cannot be read.*Nothing was changed\. Move the file away"
    ):
        read_everything(path)
    assert path.read_bytes() == bytes(data)


def test_files_of_others_and_of_newer_versions(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    keep(comparison(), path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(
        StoreError, match=r"newer TOAST Lab \(version 99 of its columns, this one knows 1\)"
    ):
        ComparisonStore(path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(StoreError, match="a database of another program"):
        ComparisonStore(other)
    assert other.read_bytes() == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot open .*Does its folder exist"):
        ComparisonStore(tmp_path / "file" / "runs.sqlite")
    with pytest.raises(StoreError, match="there are no kept results"):
        ComparisonStore(tmp_path / "none.sqlite", read_only=True)
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    _read_only_folder(tmp_path)


def _read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shut"
    keep(comparison(), folder / "runs.sqlite")
    folder.chmod(0o555)
    try:
        with pytest.raises(StoreError, match=r"cannot open .*unable to open.*TOAST_LAB_RUNS"):
            ComparisonStore(folder / "another.sqlite")
        (folder / "runs.sqlite").chmod(0o444)
        with ComparisonStore(folder / "runs.sqlite", read_only=True) as store:
            assert len(store.rows()) == 1
        with pytest.raises(StoreError, match="Does its folder exist, and can it be written to"):
            keep(comparison(), folder / "runs.sqlite")
    finally:
        folder.chmod(0o755)


AS_NOBODY = """
import os, sys
from pathlib import Path
from tests.compare import test_store
test_store.record(test_store.comparison(), test_store.row(), "")  # imports what only root can
os.setgid(65534); os.setuid(65534)
test_store._read_only_folder(Path(sys.argv[1]))
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_read_only_folder_as_somebody_else() -> None:
    folder = Path(tempfile.mkdtemp())  # tmp_path is inside a folder of root
    try:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "done\n", done.stderr
    finally:
        shutil.rmtree(folder)


def test_a_full_disk_costs_the_keeping_and_not_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.sqlite"
    keep(comparison(), path)
    plain = ComparisonStore._connect

    def small(self: ComparisonStore, read_only: bool) -> sqlite3.Connection:
        connection = plain(self, read_only)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(ComparisonStore, "_connect", small)
    large = row("large", plan={"mesh": {"d": 2}, "ops": list(range(10**5))})
    done = _kept(comparison(large), path, False)
    assert done.rows == (large,)
    assert done.stored_as == ()
    assert "not kept: cannot write" in done.notes[0]
    assert "full. Free some space" in str(done)
    monkeypatch.undo()
    with ComparisonStore(path) as store:
        assert [r["name"] for r in store.rows()] == ["fsdp"]


STRANGE = ["x", -1.5, b"\x00\xff", None, "[1]", "{", "NaN", 1e400, '{"a": ' * 5000, "null"]


def test_a_damaged_row_is_left_out_of_the_list_and_refused_by_itself(tmp_path: Path) -> None:
    """Each column of a row is overwritten in turn; the other rows can still be read.

    What could have been written, such as another time, is told from what was by its checksum.
    """
    path = tmp_path / "runs.sqlite"
    keep(comparison(row("a"), row("b")), path)
    refusals = 0
    for column in [*module._TEXT, *module._NUMBER, *module._JSON]:
        for value in STRANGE:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                before = connection.execute(f"SELECT {column} FROM runs WHERE id = 1").fetchone()
                try:
                    connection.execute(f"UPDATE runs SET {column} = ? WHERE id = 1", [value])
                except sqlite3.IntegrityError:
                    continue  # the database itself refuses it
                connection.commit()
            with ComparisonStore(path, read_only=True) as store:
                message = ""
                try:
                    store.get(1)
                except StoreError as error:
                    message = str(error)
                ids = [r["id"] for r in store.rows()]
                assert bool(message) == ((value,) != before)
                if message:
                    refusals += 1
                    assert re.search(f"row 1 is damaged: ({column}|its values) ", message)
                    assert "DELETE FROM runs WHERE id = 1" in message
                    assert re.match(f"row 1: ({column}|its values) ", store.damaged[0])
                assert ids == ([2] if message else [2, 1])
                assert store.get(2)["name"] == "b"
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute(f"UPDATE runs SET {column} = ? WHERE id = 1", before)
                connection.commit()
    assert refusals > 150


def test_rows_of_files_without_checksums_are_believed_and_new_ones_get_theirs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.sqlite"
    keep(comparison(row("old")), path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE runs DROP COLUMN checksum")
    with ComparisonStore(path, read_only=True) as store:
        assert [r["name"] for r in store.rows()] == ["old"]
    keep(comparison(row("new")), path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE runs SET median_s = 12345")
        connection.commit()
    with ComparisonStore(path) as store:
        assert [r["name"] for r in store.rows()] == ["old"]
        assert len(store.damaged) == 1


def test_a_kept_plan_names_source_lines_without_the_folders_of_this_machine(
    tmp_path: Path,
) -> None:
    import toast_lab as tl

    problem = tl.Problem(tl.analyse(tl.load("mlp", batch=64)), {"d": 2})
    plan = tl.Plan.from_actions(problem, ["B->d"])
    [number] = keep(comparison(row(plan=plan.to_json())), tmp_path / "runs.sqlite")
    with ComparisonStore(tmp_path / "runs.sqlite") as store:
        kept = str(store.get(number))
    assert "mlp.py:" in kept
    assert str(ROOT) not in kept
    plan.save(tmp_path / "plan.json")
    assert str(ROOT) not in (tmp_path / "plan.json").read_text()
