# Sourced by the other scripts: finds a Python >= 3.11, makes or reuses .venv, installs what is asked for.
# shellcheck shell=bash
#
#   prepare_venv EXTRAS      e.g. prepare_venv dev,spark; afterwards "$VENV_PYTHON" runs, and finds `dledger`
#
# What it does goes to standard error. Settings: PYTHON (interpreter to use), VENV (default: .venv of this
# checkout), PIP_ARGS (further arguments of pip install).

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${VENV:-$ROOT/.venv}"
VENV_PYTHON="$VENV/bin/python"

say() { printf '%s\n' "$*" >&2; }

# Runs, and is new enough?
usable_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python; do
        if usable_python "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    say "No Python >= 3.11 found (tried: ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python})."
    say "Install one, or name it: PYTHON=/path/to/python3 $0"
    return 1
}

# find_python_version X.Y: the path of a Python of this version, on PATH or installed by pyenv
find_python_version() {
    local candidate
    for candidate in $(type -ap "python$1") "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"[.-]*/bin/python; do
        # A shim of pyenv's is there for each version, and ends with an error where that version is not chosen.
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Content that decides whether an installation is still right.
stamp_of() {
    "$VENV_PYTHON" - "$ROOT/pyproject.toml" "$1" "$ROOT" <<'PY'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[3])
parts = [pathlib.Path(sys.argv[1]), root / "setup.py", root / "dledger/_fast/compiled.pyx"]
text = b"".join(part.read_bytes() for part in parts) + sys.argv[2].encode() + sys.argv[3].encode() + sys.version.encode()
print(hashlib.sha256(text).hexdigest())
PY
}

make_venv() {
    local python
    python="$(find_python)" || return 1
    say "Making $VENV with $("$python" -V 2>&1)"
    # A leftover of an interrupted or outdated one goes; a Debian python without ensurepip needs the second way.
    rm -rf "$VENV"
    if "$python" -m venv "$VENV" >/dev/null 2>&1; then
        return 0
    fi
    rm -rf "$VENV"
    "$python" -m venv --without-pip "$VENV" || return 1
    "$python" -m pip --version >/dev/null 2>&1 || {
        say "$python has neither ensurepip nor pip: install its pip (or its venv package)."
        return 1
    }
    printf '%s\n' "$(command -v "$python")" >"$VENV/.pip-of"
}

run_pip() {
    if [ -f "$VENV/.pip-of" ]; then
        "$(cat "$VENV/.pip-of")" -m pip --python "$VENV_PYTHON" "$@"
    else
        "$VENV_PYTHON" -m pip "$@"
    fi
}

prepare_venv() {
    local wanted lock status=0
    wanted="$(missing_of "$1")"
    [ -n "$wanted" ] || return 0
    if command -v flock >/dev/null 2>&1; then # two scripts at once: the second waits for the first
        lock="${TMPDIR:-/tmp}/dledger-venv-$(id -u)-$(printf '%s' "$VENV" | cksum | tr ' ' -).lock"
        exec 9>"$lock"
        if ! flock --nonblock 9; then
            say "Waiting for another script that installs into $VENV (lock: $lock)"
            flock 9
        fi
        wanted="$(missing_of "$1")"
    fi
    [ -z "$wanted" ] || install_missing "$1" "$wanted" || status=$?
    exec 9>&-
    return "$status"
}

# missing_of EXTRAS: those of them (and the base) that are not installed as pyproject.toml has them now.
missing_of() {
    local extra
    for extra in base ${1//,/ }; do
        if ! usable_python "$VENV_PYTHON" ||
            [ "$(cat "$VENV/.installed-$extra" 2>/dev/null)" != "$(stamp_of "$extra")" ]; then
            printf '%s ' "$extra"
        fi
    done
}

# install_missing EXTRAS WANTED. Every step returns on failure by itself: `set -e` does not reach into a
# function called with `||`.
install_missing() {
    local extra target="$ROOT" started=$SECONDS
    usable_python "$VENV_PYTHON" || make_venv || return 1
    [ -z "$1" ] || target="$ROOT[$1]"
    local size=""
    case ",$1," in *,spark,*) size=": about 450 MB for spark" ;; esac
    say "Installing dledger${1:+[$1]} into $VENV (the first time it downloads$size)"
    # shellcheck disable=SC2086  # PIP_ARGS is a list
    run_pip install --disable-pip-version-check --progress-bar off ${PIP_ARGS:-} --editable "$target" 2>&1 |
        show_progress || {
        say "Installing failed: see above; is the package index reachable?"
        return 1
    }
    for extra in $2; do
        stamp_of "$extra" >"$VENV/.installed-$extra" || return 1
    done
    say "Installed in $((SECONDS - started)) s"
}

# pip says much; show what takes time, and everything if it fails.
show_progress() {
    local line
    while IFS= read -r line; do
        case "$line" in
        *Downloading* | *Building* | *Successfully* | *rror* | *ERROR* | *WARNING* | *"No matching"*)
            say "  ${line:0:150}"
            ;;
        esac
    done
}
