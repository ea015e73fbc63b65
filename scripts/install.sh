#!/usr/bin/env bash
# Install into a virtual environment, with the arguments of pip:
#   install.sh VENV ARGUMENT...
# uv takes seconds where pip takes a minute or two. If uv is not available or fails, pip installs instead, and the
# user reads pip's error message.
set -euo pipefail

venv="$1"
shift
python="$venv/bin/python"
pip=("$python" -m pip install -qq --no-compile --disable-pip-version-check)
here="$(cd "$(dirname "$0")/.." && pwd)"

find_uv() {
    local place
    for place in "$venv/bin/uv" "$here/.venv/bin/uv" "$(command -v uv || true)"; do
        if [ -n "$place" ] && "$place" --version >/dev/null 2>&1; then
            echo "$place"
            return
        fi
    done
}

uv="$(find_uv)"
if [ -z "$uv" ]; then
    "${pip[@]}" --only-binary :all: "$(grep -m 1 '^uv==' "$here/constraints.txt")" 2>/dev/null || true
    uv="$(find_uv)"
fi
if [ -n "$uv" ]; then
    # uv does not read pip's settings for a mirror.
    mirror="${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}"
    if [ -n "$mirror" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$mirror}"; fi
    if "$uv" pip install --quiet --python "$python" "$@" 2>/dev/null; then exit 0; fi
fi
exec "${pip[@]}" "$@"
