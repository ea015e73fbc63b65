#!/usr/bin/env bash
# Make or refresh a virtual environment:
#   setup_venv.sh VENV INTERPRETER|auto EXTRAS [REQUIREMENT...]
# EXTRAS is a comma list such as app,notebooks ("" for none). A stamp in the environment remembers what was
# installed, so a second call is quick, and a changed pyproject.toml or constraints.txt installs again.
# With NEWEST=1 the versions of constraints-newest.txt take the place of the others.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/find_python.sh

venv="$1" interpreter="$2" extras="$3"
shift 3

# Two makes at once must not install into one environment.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$venv.lock"
    flock 9
fi

constraints=constraints.txt
if [ -n "${NEWEST:-}" ]; then
    constraints="$(mktemp)"
    trap 'rm -f "$constraints"' EXIT
    replaced="$(sed -n 's/==.*//p' constraints-newest.txt | paste -sd '|')"
    grep -Ev "^($replaced)==" constraints.txt | cat - constraints-newest.txt >"$constraints"
fi

stamp="$venv/.installed${extras:+-${extras//,/-}}"
# The checkout's path counts too: an environment does not survive being moved.
wanted="$({ pwd; cat pyproject.toml "$constraints"; printf '%s\n' "$@"; } | cksum)"
if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "" 2>/dev/null &&
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || ! head -n 1 "$venv/bin/pip" | grep -qF "$PWD/"; then
    if [ "$interpreter" = auto ]; then
        found="$(list_pythons)"
        first="${found%%$'\n'*}"
        interpreter="${first#* }"
        if [ -z "$interpreter" ]; then
            echo "No Python 3.11 or newer found (tried python3 and python3.11 to python3.14)." >&2
            echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2
            exit 1
        fi
    fi
    version="$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    echo "== $venv: new environment from $interpreter (Python $version)"
    if ! "$interpreter" -c "import ensurepip, venv" 2>/dev/null; then
        # Debian and Ubuntu ship the venv module's other half as a package of its own.
        bash scripts/apt_install.sh "python$version-venv" || bash scripts/apt_install.sh python3-venv
    fi
    rm -rf "$venv"
    "$interpreter" -m venv "$venv"
fi

echo "== $venv: installing .${extras:+[$extras]} $*"
started=$SECONDS
bash scripts/install.sh "$venv" --constraint "$constraints" --editable ".${extras:+[$extras]}" "$@"
# Compiled by the installer it would be 17,000 files, tests of other packages among them.
"$venv/bin/python" -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')" || true
echo "== $venv: installed in $((SECONDS - started)) s"
# Who has app,notebooks,dev has app,notebooks as well: one stamp for each leading part of the list.
while :; do
    echo "$wanted" >"$venv/.installed${extras:+-${extras//,/-}}"
    case "$extras" in
        *,*) extras="${extras%,*}" ;;
        *) break ;;
    esac
done
