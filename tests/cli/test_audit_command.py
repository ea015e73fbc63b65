"""The gate of ``toast-lab audit``: shares, files of known findings, exit statuses."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import pytest

from toast_lab.commands import common
from toast_lab.commands.audit_command import _allowed, _audit, _share
from toast_lab.errors import InvalidInput


def test_a_share_is_a_percentage_or_a_number() -> None:
    assert (_share("5%"), _share("0.05"), _share(" 12.5 %")) == (0.05, 0.05, 0.125)
    for wrong in ("five", "-1%", "nan", "inf"):
        with pytest.raises(ArgumentTypeError, match="is not a share"):
            _share(wrong)


def test_known_findings_need_reasons(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("# a comment\nuneven-dim  # six heads until March\nmodel.py:31 # cheap\n\n")
    assert _allowed(str(path)) == ["uneven-dim", "model.py:31"]
    path.write_text("uneven-dim\n")
    with pytest.raises(InvalidInput, match=r"reason.*line 1, 'uneven-dim'"):
        _allowed(str(path))
    with pytest.raises(InvalidInput, match="No such file"):
        _allowed(str(tmp_path / "none.txt"))


def test_code_that_makes_its_mesh_is_told_to_give_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load_model(args: Namespace) -> None:
        raise InvalidInput("net:make raised ValueError: Number of devices 1 must be >= 8")

    monkeypatch.setattr(common, "load_model", load_model)
    args = Namespace(mesh=None, machine="tpu-v5e", topology=None, platform=None)
    with pytest.raises(InvalidInput, match=r"must be >= 8\. Give --mesh, such as"):
        _audit(args)
