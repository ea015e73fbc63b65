#!/usr/bin/env bash
# The method's own tests once more under another Python, which also means another jax: 3.12 or newer when
# .venv is 3.11, and 3.11 when .venv is newer. The explorer and the browser are left to the main run.
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
bash scripts/setup_venv.sh "$venv" "$interpreter" "" pytest pytest-timeout hypothesis syrupy

suites=()
for stage in ir nda conflicts sharding cost search explain lowering apply runtime paper certification/rules; do
    if [ -n "$(find "tests/$stage" -name 'test_*.py' -print -quit 2>/dev/null)" ]; then
        suites+=("tests/$stage")
    fi
done
if [ "${#suites[@]}" -eq 0 ]; then
    echo "== other Python: ${line%% *} is here, but there are no stage tests yet"
    exit 0
fi
"$venv/bin/python" -m toast_lab.prepare
echo "== other Python: ${line%% *}: ${suites[*]}"
"$venv/bin/python" -m pytest -q -p no:cacheprovider "${suites[@]}"
