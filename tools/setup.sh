#!/bin/sh
# Makes .venv in the project's folder and installs cpinfra into it; a second call with nothing new does nothing.
#
#   tools/setup.sh dev      with the dev extra, torch too: what the tests and the linters need
#   tools/setup.sh user     cpinfra alone, without torch: proofs run in the interpreter that --python names
#   tools/setup.sh find     only print the interpreter that .venv would be made from
#
# PYTHON names the interpreter to make .venv from; without it the first usable one on PATH is taken. For `user`
# it is only the first choice: there .venv need not be of the Python that has torch.
set -eu
cd -- "$(dirname -- "$0")/.."

kind=${1:-dev}
venv=.venv
stamp=$venv/.cpinfra-$kind
cpu_index=https://download.pytorch.org/whl/cpu

stop() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# torch has wheels for these.
is_supported() { case $1 in 3.10 | 3.11 | 3.12 | 3.13 | 3.14) ;; *) return 1 ;; esac }

makes_venvs() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Prints the first usable interpreter, or says what each one lacked and what to do about it.
find_base() {
    lacking=
    others='python3.11 python3.12 python3.13 python3.10 python3'
    [ -z "${PYTHON:-}" ] || [ "$kind" = user ] || others=
    for name in ${PYTHON:+"$PYTHON"} $others; do
        found=$(command -v "$name") && version=$(version_of "$found") || continue
        if ! is_supported "$version"; then
            lacking="$lacking; $name is $version"
        elif ! makes_venvs "$found"; then
            lacking="$lacking; $name cannot make virtual environments (apt-get install python$version-venv)"
        else
            printf '%s\n' "$found"
            return
        fi
    done
    lacking=${lacking#; }
    stop "needs Python 3.10 to 3.14 that can make virtual environments; got: ${lacking:-${PYTHON:-none on PATH}}." \
        "Install one (Debian, Ubuntu: apt-get install python3-venv) or name one: make ... PYTHON=/path"
}

is_current() {
    [ "$1" -nt pyproject.toml ] && [ "$1" -nt hatch_build.py ] && [ "$(cat "$1")" = "$PWD" ] || return 1
    $venv/bin/python -c '' 2>/dev/null
}

# A folder that was moved, a broken or an old interpreter: made anew. A set-up that was interrupted goes on.
is_sound() {
    [ -x $venv/bin/python ] && is_supported "$(version_of $venv/bin/python)" || return 1
    $venv/bin/python -c 'import os, pip, sys; sys.exit(os.path.realpath(sys.prefix) != os.path.realpath(sys.argv[1]))' \
        $venv 2>/dev/null || return 1
    for old in $venv/.cpinfra-*; do
        [ ! -e "$old" ] || [ "$(cat "$old")" = "$PWD" ] || return 1
    done
}

pip_install() { $venv/bin/python -m pip --disable-pip-version-check install --quiet "$@"; }

has_torch() {
    $venv/bin/python - "${1#torch==}" <<'EOF'
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    found = version("torch").split("+")[0]
except PackageNotFoundError:
    found = None
sys.exit(found != sys.argv[1])
EOF
}

reaches() {
    $venv/bin/python - "$1/torch/" 2>/dev/null <<'EOF'
import sys
from urllib.request import urlopen
urlopen(sys.argv[1], timeout=5).close()
EOF
}

# The CPU build by preference: on Linux x86_64 the default one brings CUDA. PyTorch's index serves torch alone:
# what torch needs comes from pip's own sources, when cpinfra is installed.
install_torch() {
    torch=$(sed -n 's/.*"\(torch==[0-9.]*\)".*/\1/p' pyproject.toml)
    ! has_torch "$torch" || return 0
    if reaches $cpu_index; then
        echo "setup: installing $torch for the CPU: about 190 MB to download, 750 MB on disk"
        pip_install --index-url $cpu_index --no-deps "$torch" && return
        echo "setup: that failed; once more from pip's own sources"
    fi
    echo "setup: installing $torch from where pip is configured to look, as PyTorch's CPU index cannot be used:"
    echo "setup: a CPU build is about 190 MB; PyPI's for Linux x86_64 brings CUDA, several GB in all."
    echo "setup: to use a torch that you have instead: make demo PYTHON=/path/to/its/python"
    pip_install "$torch"
}

# Asking for another interpreter must not silently keep the old one.
refuse_another_base() {
    is_sound || return 0
    wanted=$("$1" -c 'import sys; print(sys.base_prefix, sys.version)')
    [ "$wanted" = "$($venv/bin/python -c 'import sys; print(sys.base_prefix, sys.version)')" ] ||
        stop "$venv was made from another interpreter than $PYTHON; remove it first: rm -r $venv"
}

case $kind in
dev | user) ;;
find) find_base && exit ;;
*) stop "expected dev, user or find, got $kind" ;;
esac
if [ "$kind" = dev ] && [ -n "${PYTHON:-}" ]; then
    base=$(find_base)
    refuse_another_base "$base"
fi
! is_current "$stamp" || exit 0
if [ "$kind" = user ] && is_current $venv/.cpinfra-dev; then
    exit 0 # the dev set-up holds all of it
fi
if ! is_sound; then
    base=$(find_base)
    echo "setup: making $venv from $base"
    "$base" -m venv --clear $venv
fi
if [ "$kind" = dev ]; then
    install_torch
    echo "setup: installing cpinfra and its dev tools (about 40 MB)"
    pip_install --editable '.[dev]'
else
    echo "setup: installing cpinfra without torch (about 10 MB)"
    pip_install --editable .
fi
printf '%s\n' "$PWD" >"$stamp"
