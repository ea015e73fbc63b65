#!/usr/bin/env bash
# Build sdist and wheel into dist/, and try the wheel in empty environments: by itself, and with the explorer's extra.
# The wheel is built from the sdist, so that a file missing from the sdist is noticed here and not by its first user.
#   package.sh [EXTRA ...]      extras to try, by default: app
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/find_python.sh

line="$(list_pythons | head -n 1)"
interpreter="${line#* }"
if [ -z "$interpreter" ]; then
    echo "No Python 3.11 or newer found; name it: make PYTHON=/path/to/python3 package" >&2
    exit 1
fi
# What the trials import is the wheel, whatever the caller's own runs import.
unset PYTHONPATH
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
constraints="$PWD/constraints.txt"
# The wheel has the checkout's kernels, file by file, so those that the checkout has compiled are good for it, too. Where
# there are none, a trial compiles them.
mkdir -p "$work/kernels" toast_lab/__pycache__/kernels
chmod 700 toast_lab/__pycache__/kernels
ln -s "$PWD/toast_lab/__pycache__/kernels" "$work/kernels/toast-lab"
export NUMBA_CACHE_DIR="$work/kernels"

echo "== building with Python ${line%% *}"
"$interpreter" -m venv "$work/build"
bash scripts/install.sh "$work/build" build
rm -rf dist
"$work/build/bin/python" -m build --outdir dist . >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log"; exit 1; }
wheel="$(ls "$PWD"/dist/*.whl)"
ls -l dist

for extra in "" "${@:-app}"; do
    echo "== trying the wheel${extra:+ with the extra $extra} in an empty environment"
    venv="$work/try-${extra:-core}"
    "$interpreter" -m venv "$venv"
    # Not compiled ahead: bytecode is made for what a trial imports
    bash scripts/install.sh "$venv" --constraint "$constraints" "$wheel${extra:+[$extra]}"
    "$venv/bin/python" -m pip check
    # Run outside the checkout, whose package would be imported instead of the installed one
    (cd "$work" && "$venv/bin/toast-lab" --help >/dev/null &&
        "$venv/bin/toast-lab" analyse attention >/dev/null &&
        "$venv/bin/python" "$OLDPWD/scripts/package_trial.py" "$extra")
done
echo "== dist/ holds $(ls dist | tr '\n' ' ')"
