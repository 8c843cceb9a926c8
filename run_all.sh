#!/usr/bin/env bash
# The one entry point: refuses bad input, sets up, then does what is asked for (harp_lib/cli.py).
set -euo pipefail
# Streams may be closed, as in some CI, and nobody may read what is printed.
{ : 3>&2; } || exec 2>/dev/null
{ : >&1; } 2>/dev/null || exec >/dev/null
{ : <&0; } 2>/dev/null || exec </dev/null
trap '' PIPE

checkout=$(CDPATH='' cd -- "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
if [[ $checkout == *:* ]]; then
    echo "run_all.sh: Python finds nothing in $checkout, because of the colon: rename the folder" >&2
    exit 1
fi
# The caller's folder stays the working directory, so that relative paths mean what the caller
# means. Modules that happen to lie there are not imported, because of python -P.
for name in "${!PYTHON@}"; do # what the caller's shell sets for other programs
    [[ $name == PYTHONIOENCODING ]] || unset "$name"
done
export PYTHONPATH=$checkout

if [[ -n ${HARP_PYTHON:-} ]]; then
    candidates=("$HARP_PYTHON")
else
    candidates=(python3 python3.13 python3.12 python3.11 "$checkout/.venv/bin/python")
fi
for bootstrap in "${candidates[@]}" ""; do
    "$bootstrap" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break
done
if [[ -z $bootstrap ]]; then
    echo "run_all.sh: no Python 3.11 or newer among: ${candidates[*]};" \
        "install one, or set HARP_PYTHON" >&2
    exit 1
fi

code=0
"$bootstrap" -B -P -m harp_lib.cli --check "$@" || code=$?
[[ $code == 3 ]] && exit 0 # help was shown
[[ $code == 0 ]] || exit "$code"

say() { echo "run_all.sh: $*" >&2 || true; }
lacks() { "$1" -P -m harp_lib.cli --lacks 2>/dev/null; }

# Makes .venv hold what requirements.lock pins. A stamp in it says for which lock and folder it was
# made, or "unfinished" while this is at work.
set_up() {
    # One set-up at a time: whoever comes second waits here for the lock, and finds the stamp.
    # NFS locks only files that are open for writing.
    { exec 9<>"$checkout/requirements.lock"; } 2>/dev/null || exec 9<"$checkout/requirements.lock"
    "$bootstrap" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 2>/dev/null ||
        say "this file system has no locks: no other set-up of this checkout may be at work"
    [[ $(cat "$stamp" 2>/dev/null) != "$expected_stamp" ]] || return 0
    # A complete .venv without a stamp was made by hand, and is left as it is.
    if [[ -e $stamp ]] || ! lacks "$python" >/dev/null; then
        if [[ $(cat "$stamp" 2>/dev/null) == unfinished ]] || ! "$python" -c '' 2>/dev/null; then
            say "making .venv"
            # The bootstrap may be the interpreter of the .venv that is cleared; its base is not.
            base=$("$bootstrap" -c 'import sys; print(sys._base_executable)')
            "$base" -m venv --clear "$checkout/.venv"
        fi
        echo unfinished >"$stamp"
        say "installing what requirements.lock pins into .venv (a minute or two the first time)"
        local pip=("$python" -m pip --disable-pip-version-check --no-input)
        local uv=("$python" -m uv pip install --quiet --compile-bytecode --python "$python")
        local index # uv does not read pip's configuration
        if index=$("${pip[@]}" config get global.index-url 2>/dev/null); then
            export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
        fi
        if ! { "${pip[@]}" install --quiet uv && "${uv[@]}" -r "$checkout/requirements.lock"; }; then
            # MLX has no wheels for systems older than glibc 2.35 or macOS 14; its tests skip there.
            say "uv could not do it; pip takes some minutes, and leaves out MLX"
            grep -v '^mlx' "$checkout/requirements.lock" >"$checkout/.venv/without-mlx.lock"
            "${pip[@]}" install --quiet -r "$checkout/.venv/without-mlx.lock"
        fi
        # By a name that pip cannot take for one with extras, as of a folder `x[1]`.
        (cd "$checkout" && "${pip[@]}" install --quiet --no-deps --no-build-isolation -e .)
    fi
    echo "$expected_stamp" >"$stamp"
    exec 9<&-
}

python=
# The activated environment will do, if it has everything.
for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    if [[ -z ${HARP_PYTHON:-} && -n $prefix ]] && lacks "$prefix/bin/python" >/dev/null; then
        python=$prefix/bin/python
        break
    fi
done
if [[ -n ${HARP_PYTHON:-} ]]; then
    python=$bootstrap
    if ! missing=$(lacks "$python"); then
        say "HARP_PYTHON=$HARP_PYTHON lacks $missing;" \
            "install requirements.lock there, or unset HARP_PYTHON"
        exit 1
    fi
elif [[ -z $python ]]; then
    python=$checkout/.venv/bin/python
    stamp=$checkout/.venv/harp.stamp
    expected_stamp="$(cksum <"$checkout/requirements.lock") $checkout"
    [[ $(cat "$stamp" 2>/dev/null) == "$expected_stamp" ]] || set_up
fi

# Kernels fork, and tokenizers would print a warning about it.
export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}
# The kernel of this environment goes before the user's own.
export JUPYTER_PREFER_ENV_PATH=1
exec "$python" -P -m harp_lib.cli "$@"
