#!/usr/bin/env bash
# What touches jax, jaxlib or numba once more under another Python, which also means other versions of these: 3.12 or
# newer when .venv is 3.11, and 3.11 when .venv is newer. Of the searches and prices, plain code on arrays, the contract
# that all methods keep stands for the rest.
#   test_other_python.sh         tests
#   test_other_python.sh setup   only installs
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

if [ "${1:-}" = setup ]; then exit 0; fi

# The bindings that read and write StableHLO, tracing, running, compiling, the transformed function, every rule
# on shards, and the kernels: each where it meets jax, jaxlib or numba.
suites=(
    tests/certification/rules tests/apply tests/ir tests/lowering
    tests/runtime/test_run.py tests/runtime/test_compile.py tests/runtime/test_hlo.py tests/runtime/test_hlo_text.py
    tests/kernels/test_packs.py tests/kernels/test_kernel_files.py tests/search/test_conformance.py
)
"$venv/bin/python" -m toast_lab.prepare
echo "== other Python: ${line%% *}: ${suites[*]}"
# Larger programs say nothing more of another Python.
"$venv/bin/python" -m pytest -q -p no:cacheprovider -m "not slow and not accelerator and not timing" \
    -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
    --deselect "tests/apply/test_jit.py::test_the_plan_is_carried_out_to_the_collective[transformer-2]" \
    --deselect "tests/apply/test_jit.py::test_the_plan_is_carried_out_to_the_collective[gns-4]" \
    "${suites[@]}"
