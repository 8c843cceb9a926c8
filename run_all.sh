#!/usr/bin/env bash
# The one entry point: refuses bad input, sets up, then runs notebooks, tests or figures.
# ./run_all.sh --help says what there is; harp_lib/environment.py does the set-up, harp_lib/cli.py the rest.
set -euo pipefail

script=${BASH_SOURCE[0]}
while [[ -L $script ]]; do # macOS has no readlink -f
    target=$(readlink "$script")
    [[ $target == /* ]] || target=$(dirname "$script")/$target
    script=$target
done
checkout=$(CDPATH='' cd -- "$(dirname "$script")" && pwd -P)

if [[ -n ${HARP_PYTHON:-} ]]; then
    candidates=("$HARP_PYTHON")
else
    candidates=(python3 python3.13 python3.12 python3.11 "$checkout/.venv/bin/python")
fi
for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        bootstrap=$candidate
        break
    fi
done
if [[ -z ${bootstrap:-} ]]; then
    echo "run_all.sh: no Python 3.11 or newer among: ${candidates[*]}; install one, or set HARP_PYTHON" >&2
    exit 1
fi

# The caller's folder stays the working directory, so that relative paths mean what the caller means; -P keeps
# modules that happen to lie there out of the way.
export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}"
code=0
"$bootstrap" -B -P -m harp_lib.cli --check "$@" || code=$?
case $code in
0) ;;
3) exit 0 ;; # help was shown
*) exit "$code" ;;
esac

python=$("$bootstrap" -P -m harp_lib.environment)

export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false} # kernels fork; silent either way
export JUPYTER_PREFER_ENV_PATH=1                               # this environment's kernel, not the user's
exec "$python" -P -m harp_lib.cli "$@"
