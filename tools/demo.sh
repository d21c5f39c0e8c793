#!/bin/sh
# The main job as a rehearsal: 4 ranks on the CPU. PYTHON names the interpreter whose torch is used; without
# it .venv gets one.
set -eu
cd -- "$(dirname -- "$0")/.."

refuse() {
    printf 'demo: PYTHON=%s: %s; name an interpreter that has torch, or leave PYTHON out\n' "$PYTHON" "$*" >&2
    exit 2
}

rehearse() {
    echo "\$ .venv/bin/cpinfra build 4 --rehearse${*:+ $*}"
    exec .venv/bin/cpinfra build 4 --rehearse "$@"
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
