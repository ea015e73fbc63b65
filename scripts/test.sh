#!/usr/bin/env bash
# Run all checks that a change must pass to be accepted. The main test run comes last, so that its summary is
# the last line of the output. The first failure ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."

work="$(mktemp -d)"
declare -A started read_now
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# Run a script in the background. Its output is kept until `finish` prints it.
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

# Has this part passed in this environment, on the very files that it reads? `make test-all` runs it all the same, and so
# does a new clone, which has no record.
#   passed_before NAME WORD FILE_OR_FOLDER ...      WORD: what else decides, such as the day of a sample
passed_before() {
    local name="$1" word="$2"
    shift 2
    read_now[$name]="$({ git ls-files -coz --exclude-standard -- "$@" | xargs -0 sha256sum &&
        .venv/bin/python -V && echo "$word"; } 2>/dev/null | sha256sum)"
    [ "${TOAST_LAB_SAMPLE:-}" != all ] && git rev-parse --git-dir >/dev/null 2>&1 &&
        [ "$(cat ".venv/.passed-$name" 2>/dev/null)" = "${read_now[$name]}" ] &&
        echo "== $name: passed before on the same files"
}

passed() { echo "${read_now[$1]}" >".venv/.passed-$1"; }

part() { echo "== after $SECONDS s: $1"; }

bash scripts/setup_venv.sh .venv auto app,notebooks,dev,docs
# Type checking and installing for the other Python keep one core busy each.
part "the other Python's environment, beside the static checks"
beside lint.sh
bash scripts/install_torch.sh .venv
bash scripts/ensure_chromium.sh
bash scripts/test_other_python.sh setup
# The package is built from scratch, and the wheel is tried in empty environments. This starts only when nothing else
# installs the checkout, since a build writes the checkout's metadata, too.
part "the kernels and the package"
packaged=(toast_lab pyproject.toml setup.py README.md LICENSE constraints.txt scripts)
if ! passed_before package "" "${packaged[@]}"; then beside package.sh; fi
bash scripts/warm.sh
finish lint.sh
part "the other Python's tests, beside the package"
day="${TOAST_LAB_SAMPLE:-$(date +%F)}"
if ! passed_before "other Python" "$day" toast_lab evaluation tests scripts pyproject.toml constraints*.txt; then
    bash scripts/test_other_python.sh
    passed "other Python"
fi
if [ -n "${started[package.sh]:-}" ]; then
    finish package.sh
    passed package
fi

mapfile -t timed < <(grep -rl --include='test_*.py' 'mark\.timing' tests)
version="$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
part "main run, Python $version"
.venv/bin/python -m pytest -m timing "${timed[@]}"
# Laws run on the sample of the day (tests/sampling.py) unless all of it is asked for, and then the slow tests run, too.
marks="not slow and not accelerator and not timing"
report=()
if [ "${TOAST_LAB_SAMPLE:-}" = all ]; then
    marks="not accelerator and not timing"
    report=(--junitxml .venv/test-all.xml)
fi
# The tests of a file stay on one worker, since they share fixtures of the file. More workers than cores would take
# longer: the tests are bound by the CPU, and what is made once for each worker would be made once more.
.venv/bin/python -m pytest -m "$marks" \
    -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5 "${report[@]}" tests
