"""An edit of a file that a kernel calls into is not missed by the cache on disk."""

import os
import subprocess
import sys
import textwrap

CALLED = "import numba\n\n\n@numba.njit(cache=True)\ndef called():\n    return {}\n"
CALLER = """
import numba
import called
from toast_lab.compiled import depends_on

@depends_on(called)
@numba.njit(cache=True)
def caller():
    return called.called() + 1

print(caller())
"""


def test_a_kernel_is_compiled_anew_when_a_file_that_it_calls_was_edited(tmp_path):
    (tmp_path / "caller.py").write_text(textwrap.dedent(CALLER))
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    found = []
    for i, value in enumerate((1, 2)):
        (tmp_path / "called.py").write_text(CALLED.format(value))
        os.utime(tmp_path / "called.py", (i + 1e9, i + 1e9))
        env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        for _ in range(2):  # the second time from the cache
            run = subprocess.run(
                [sys.executable, tmp_path / "caller.py"], env=env, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            assert run.returncode == 0, run.stderr
            found.append(int(run.stdout))
    assert found == [2, 2, 3, 3]
