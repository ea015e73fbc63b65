#!/usr/bin/env bash
# Everything that has to hold before a change is accepted. Cheap checks first; the main test run last, so
# that its closing line is the last line of all. The first failure ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup_venv.sh .venv auto app,notebooks,dev
bash scripts/install_torch.sh .venv
bash scripts/ensure_chromium.sh
bash scripts/lint.sh
bash scripts/warm.sh
bash scripts/test_other_python.sh

suites=(tests)
if [ -n "$(find notebooks -name '*.ipynb' -print -quit 2>/dev/null)" ]; then
    suites+=(--nbmake --nbmake-kernel=python3 --nbmake-timeout=600 notebooks)
fi
# A file's tests stay together: they share what is made once for a file.
workers="$(.venv/bin/python -c 'import os; print(min(4, len(os.sched_getaffinity(0))))')"
version="$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
echo "== main run: Python $version"
.venv/bin/python -m pytest -m timing tests
.venv/bin/python -m pytest -m "not slow and not accelerator and not timing" -n "$workers" --dist loadfile "${suites[@]}"
