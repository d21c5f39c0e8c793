#!/bin/sh
# The main job as a rehearsal: 4 ranks on the CPU. PYTHON names the interpreter whose torch is used; without
# it .venv gets one.
set -eu
cd -- "$(dirname -- "$0")/.."

refuse() {
    printf 'demo: PYTHON=%s: %s; name an interpreter that has torch, or leave PYTHON out\n' "$PYTHON" "$*" >&2
    exit 2
}

# Proves, says what to call next, and ends as the proof did.
rehearse() {
    echo "\$ .venv/bin/cpinfra build 4 --rehearse${*:+ $*}"
    code=0
    .venv/bin/cpinfra build 4 --rehearse "$@" || code=$?
    next=
    for argument; do
        case $argument in
            *[!A-Za-z0-9_./-]*) argument="'$(printf '%s' "$argument" | sed "s/'/'\\\\''/g")'" ;;
        esac
        next="$next $argument"
    done
    echo 'Next:'
    echo "  .venv/bin/cpinfra prove --device cpu --inject kill:2$next    # a dead rank, named"
    echo "  .venv/bin/cpinfra selftest --device cpu$next    # every fault, in about a minute"
    echo "  .venv/bin/cpinfra show; .venv/bin/cpinfra check    # the report again, and whether it is still true"
    exit "$code"
}

if [ -z "${PYTHON:-}" ]; then
    tools/setup.sh dev
    rehearse
fi

python=$(command -v "$PYTHON") || refuse "no such program"
case $python in /*) ;; *) python=$PWD/$python ;; esac
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || refuse "older than Python 3.10, or broken"
"$python" -c 'from importlib import util; import sys; sys.exit(not util.find_spec("torch"))' || refuse "has no torch"
tools/setup.sh user
rehearse --python "$python"
