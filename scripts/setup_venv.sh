#!/usr/bin/env bash
# Make or refresh a virtual environment:
#   setup_venv.sh VENV INTERPRETER|auto EXTRAS [REQUIREMENT...]
# EXTRAS is a comma-separated list such as app,notebooks ("" for none). A stamp in the environment records what
# was installed, so a second call is quick, and a change of pyproject.toml or constraints.txt installs again.
# With NEWEST=1 the versions of constraints-newest.txt replace those of constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/find_python.sh

venv="$1" interpreter="$2" extras="$3"
shift 3

# Two runs of make must not install into one environment at the same time.
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
# The stamp includes the checkout's path, because an environment does not work after it was moved.
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
        # Debian and Ubuntu have parts of the venv module in a separate package.
        bash scripts/apt_install.sh "python$version-venv" || bash scripts/apt_install.sh python3-venv
    fi
    rm -rf "$venv"
    "$interpreter" -m venv "$venv"
fi

echo "== $venv: installing .${extras:+[$extras]} $*"
started=$SECONDS
bash scripts/install.sh "$venv" --constraint "$constraints" --editable ".${extras:+[$extras]}" "$@"
# The installer would compile 17,000 files, including tests of other packages.
"$venv/bin/python" -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')" || true
echo "== $venv: installed in $((SECONDS - started)) s"
# An environment with app,notebooks,dev also has app,notebooks: write a stamp for each prefix of the list.
while :; do
    echo "$wanted" >"$venv/.installed${extras:+-${extras//,/-}}"
    case "$extras" in
        *,*) extras="${extras%,*}" ;;
        *) break ;;
    esac
done
