#!/usr/bin/env bash
# Everything that has to hold before a change is accepted. The main test run comes last, so that its closing
# line is the last line of all. The first failure ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."

work="$(mktemp -d)"
declare -A started
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# Run a script beside the others. Its output is kept, and printed by `finish`.
beside() {
    bash "scripts/$1" >"$work/$1" 2>&1 &
    started[$1]=$!
}

finish() {
    local status=0
    wait "${started[$1]}" || status=$?
    unset "started[$1]"
    cat "$work/$1"
    if [ "$status" -ne 0 ]; then exit "$status"; fi
}

part() { echo "== after $SECONDS s: $1"; }

bash scripts/setup_venv.sh .venv auto app,notebooks,dev,docs
# Checking types and installing for the other Python keep one core busy each.
part "the other Python's environment, beside the static checks"
beside lint.sh
bash scripts/install_torch.sh .venv
bash scripts/ensure_chromium.sh
bash scripts/test_other_python.sh setup
finish lint.sh
# The package is built from nothing, and the wheel tried in empty environments. That is one core's work, and starts
# once nobody else installs the checkout, whose metadata a build writes too.
part "the package, beside the other Python's tests"
beside package.sh
bash scripts/warm.sh
bash scripts/test_other_python.sh
finish package.sh

# What takes longest comes first and in this order, or one worker would end long after the others.
suites=(tests/docs/test_notebooks.py tests)
mapfile -t timed < <(grep -rl --include='test_*.py' 'mark\.timing' tests)
version="$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
part "main run, Python $version"
.venv/bin/python -m pytest -m timing "${timed[@]}"
# A file's tests stay together: they share what is made once for a file. With a worker more than cores they take longer,
# since they compute, and what is made once for a worker is made once more.
.venv/bin/python -m pytest -m "not slow and not accelerator and not timing" \
    -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder "${suites[@]}"
