#!/usr/bin/env bash
# The one entry point: refuses bad input, sets up, then runs notebooks, tests, figures, JupyterLab (harp_lib/cli.py).
set -euo pipefail
{ : <&0; } 2>/dev/null || exec </dev/null # a CI may close it

checkout=$(CDPATH='' cd -- "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
# The caller's folder stays the working directory, so that relative paths mean what the caller means; python -P keeps
# modules that happen to lie there out of the way.
export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}"

if [[ -n ${HARP_PYTHON:-} ]]; then
    candidates=("$HARP_PYTHON")
else
    candidates=(python3 python3.13 python3.12 python3.11 "$checkout/.venv/bin/python")
fi
for bootstrap in "${candidates[@]}" ""; do
    "$bootstrap" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break
done
if [[ -z $bootstrap ]]; then
    echo "run_all.sh: no Python 3.11 or newer among: ${candidates[*]}; install one, or set HARP_PYTHON" >&2
    exit 1
fi

code=0
"$bootstrap" -B -P -m harp_lib.cli --check "$@" || code=$?
[[ $code == 3 ]] && exit 0 # help was shown
[[ $code == 0 ]] || exit "$code"

say() { echo "run_all.sh: $*" >&2; }
lacks() { "$1" -P -m harp_lib.cli --lacks 2>/dev/null; }

# Makes .venv hold what requirements.lock pins. Its stamp says for which lock and folder; "unfinished" while at work.
set_up() {
    exec 9<"$checkout/requirements.lock" # one set-up at a time: the lock is on what this shell has open
    "$bootstrap" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 2>/dev/null || true
    [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]] || return 0
    if [[ -e $stamp ]] || ! lacks "$python" >/dev/null; then # else somebody made it by hand, whole
        if [[ $(cat "$stamp" 2>/dev/null) == unfinished ]] || ! "$python" -c '' 2>/dev/null; then
            say "making .venv"
            base=$("$bootstrap" -c 'import sys; print(sys._base_executable)') # not the .venv that is cleared
            "$base" -m venv --clear "$checkout/.venv"
        fi
        echo unfinished >"$stamp"
        say "installing what requirements.lock pins into .venv (a minute or two the first time)"
        local pip=("$python" -m pip --disable-pip-version-check --no-input)
        local uv=("$python" -m uv pip install --quiet --compile-bytecode --python "$python")
        local index
        index=$("${pip[@]}" config get global.index-url 2>/dev/null) && export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
        if ! { "${pip[@]}" install --quiet uv && "${uv[@]}" -r "$checkout/requirements.lock"; }; then
            say "uv could not do it; pip takes some minutes"
            "${pip[@]}" install --quiet -r "$checkout/requirements.lock"
        fi
        "${pip[@]}" install --quiet --no-deps --no-build-isolation -e "$checkout"
    fi
    echo "$wanted" >"$stamp"
    exec 9<&-
}

python=
for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do # the activated environment, if it has everything
    if [[ -z ${HARP_PYTHON:-} && -n $prefix ]] && lacks "$prefix/bin/python" >/dev/null; then
        python=$prefix/bin/python
        break
    fi
done
if [[ -n ${HARP_PYTHON:-} ]]; then
    python=$bootstrap
    if ! missing=$(lacks "$python"); then
        say "HARP_PYTHON=$HARP_PYTHON lacks $missing; install requirements.lock there, or unset HARP_PYTHON"
        exit 1
    fi
elif [[ -z $python ]]; then
    python=$checkout/.venv/bin/python
    stamp=$checkout/.venv/harp.stamp
    wanted="$(cksum <"$checkout/requirements.lock") $checkout"
    [[ $(cat "$stamp" 2>/dev/null) == "$wanted" ]] || set_up
fi

export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false} # kernels fork; silent either way
export JUPYTER_PREFER_ENV_PATH=1                               # this environment's kernel, not the user's
exec "$python" -P -m harp_lib.cli "$@"
