#!/usr/bin/env bash
# What touches jax, jaxlib or numba once more under another Python, which also means other versions of these: 3.12 or
# newer when .venv is 3.11, and 3.11 when .venv is newer. Of the searches and prices, plain code on arrays, the contract
# that all methods keep stands for the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/find_python.sh

main="$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
case "$main" in
    3.11) wanted='3.12' fallback='3.1[3-9]' ;;
    *) wanted='3.11' fallback='3.11' ;;
esac
found="$(list_pythons)"
line="$(grep -m 1 "^$wanted " <<<"$found" || grep -m 1 "^$fallback " <<<"$found" || true)"
if [ -z "$line" ]; then
    if [ "$main" = 3.11 ]; then wanted='3.12 or newer'; fi
    echo "== other Python: none found (.venv is $main, a Python $wanted was looked for); tested on $main only"
    exit 0
fi
interpreter="${line#* }"

venv=.venv-other
if [ -x "$venv/bin/python" ] &&
    [ "$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' || true)" != "${line%% *}" ]; then
    rm -rf "$venv"
fi
bash scripts/setup_venv.sh "$venv" "$interpreter" "" pytest pytest-timeout pytest-xdist hypothesis syrupy

suites=(
    tests/ir tests/lowering tests/apply tests/runtime tests/kernels tests/certification/rules
    tests/search/test_conformance.py
)
"$venv/bin/python" -m toast_lab.prepare
workers="$("$venv/bin/python" -c 'import os; print(min(4, len(os.sched_getaffinity(0))))')"
echo "== other Python: ${line%% *}: ${suites[*]}"
"$venv/bin/python" -m pytest -q -p no:cacheprovider -n "$workers" --dist loadfile "${suites[@]}"
