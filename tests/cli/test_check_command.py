"""``toast-lab check``: a status for continuous integration, a table for whoever reviews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.advice.test_check import budget


def test_the_status_is_1_and_the_table_marks_what_is_exceeded(tmp_path: Path, toast: Any) -> None:
    file = budget(tmp_path)
    assert toast("check", str(file), "--update")[0] == 0
    text = file.read_text()
    assert toast("check", str(file))[0] == 0
    file.write_text(text.replace("time_s = 0.", "time_s = 0.00"))
    status, out, _ = toast("check", str(file))
    assert status == 1
    assert "1 of " in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("!")] == ["time_s"]
    status, out, _ = toast("check", str(file), "--json")
    data = json.loads(out)
    assert (status, data["passed"]) == (1, False)
    assert [row["what"] for row in data["rows"] if row["is_exceeded"]] == ["time_s"]
    status, _, error = toast("check", str(tmp_path / "none.toml"))
    assert status not in (0, 1)
    assert "cannot be read" in error
