# Sourced by the other scripts: find the Python interpreters of this machine.

# Print "<major>.<minor> <real path>" if $1 is a working CPython >= 3.11, else nothing. A pyenv shim can
# exist and still refuse to run, so each candidate is started. Inside an activated environment the path is
# that of its base interpreter, since this environment may be the one that is about to be replaced.
probe_python() {
    command -v "$1" >/dev/null 2>&1 || return 0
    "$1" - 2>/dev/null <<'PY' || true
import platform, sys
usable = sys.version_info >= (3, 11) and platform.python_implementation() == "CPython"
if usable and getattr(sys, "_is_gil_enabled", lambda: True)():
    print(f"{sys.version_info[0]}.{sys.version_info[1]}", getattr(sys, "_base_executable", None) or sys.executable)
PY
}

# Print a line "<version> <path>" for every usable interpreter: $PYTHON first, then python3.
list_pythons() {
    local name root
    for name in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14; do
        probe_python "$name"
    done
    root="$(pyenv root 2>/dev/null || true)"
    for name in "${root:-$HOME/.pyenv}"/versions/3.1[1-9]*/bin/python; do
        if [ -x "$name" ]; then probe_python "$name"; fi
    done
}
