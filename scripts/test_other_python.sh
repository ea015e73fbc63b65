#!/usr/bin/env bash
# Test the code that touches jax, jaxlib or numba under another Python: 3.12 or newer if .venv has 3.11, and 3.11 if
# .venv has a newer one. From 3.12 on, with the newest versions (constraints-newest.txt). Searches and prices are plain
# code on arrays, so of their tests, only those of the contract that all methods keep are run.
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
newest=1
if [ "${line%% *}" = 3.11 ]; then newest=; fi
NEWEST="$newest" bash scripts/setup_venv.sh "$venv" "$interpreter" models \
    pytest pytest-timeout pytest-xdist hypothesis syrupy

if [ "${1:-}" = setup ]; then exit 0; fi

# These suites cover the places where our code meets jax, jaxlib or numba: the bindings that read and write StableHLO,
# tracing, running, compiling, the transformed function, every rule on shards, and the kernels. Larger programs and
# more draws would show nothing more about another Python. Of the methods, it is enough to test that each finds a
# valid plan with the right price, and finds it again.
export TOAST_LAB_RULE_DRAWS=1
# A third of the tests is enough for a day, besides those that are named one by one (tests/sampling.py).
export TOAST_LAB_SHARE=0.33
methods=tests/search/test_conformance.py
jit=tests/apply/test_jit.py
suites=(
    tests/evaluation/certification/test_rules.py tests/ir tests/lowering
    "$jit::test_the_plan_is_carried_out_to_the_collective[mlp-0]"
    "$jit::test_the_plan_is_carried_out_to_the_collective[attention-1]"
    "$jit::test_gradients_scans_and_training_loops"
    "$jit::test_donated_state_is_reused_and_stays_where_the_plan_has_it"
    "$jit::test_random_keys_and_python_numbers"
    "$jit::test_training_loops_see_what_the_library_s_own_jit_gives[dataclass_and_numbers]"
    tests/runtime/test_run.py tests/runtime/test_compile.py tests/runtime/test_hlo.py tests/runtime/test_hlo_text.py
    tests/kernels/test_packs.py tests/kernels/test_kernel_files.py
    "$methods::test_plan_is_valid_and_its_cost_is_the_price_of_the_plan"
    "$methods::test_same_seed_same_result"
)
"$venv/bin/python" -m toast_lab.prepare
echo "== other Python: ${line%% *}"
"$venv/bin/python" -m pytest -q -p no:cacheprovider -m "not slow and not accelerator and not timing" \
    -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder "${suites[@]}"
