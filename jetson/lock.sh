#!/usr/bin/env bash
# Makes requirements-nano.txt from requirements-nano.in: every package that a device gets, with the hashes of its files.
#
# The lock is resolved for aarch64 and glibc 2.17 by uv, which evaluates markers for the target; `pip --platform`
# evaluates them for the machine it runs on and locks a wrong set without saying so.
set -euo pipefail

if [[ ${1:-} == --help ]]; then
    cat <<'HELP'
usage: jetson/lock.sh [OPTION OF `uv pip compile`]...

Writes jetson/requirements-nano.txt. Pins that are in it stay; --upgrade renews all, --upgrade-package NAME one.
Uses uv where it is on PATH, or else one in a virtual environment that is removed again. Needs the network.
HELP
    exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")"
uv=$(command -v uv || true)
if [[ -z $uv ]]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m venv "$scratch"
    "$scratch/bin/python" -m pip install --quiet --disable-pip-version-check uv
    uv=$scratch/bin/uv
fi
UV_CUSTOM_COMPILE_COMMAND=jetson/lock.sh "$uv" pip compile --quiet \
    --python-platform aarch64-manylinux2014 --python-version 3.11 --only-binary :all: --generate-hashes \
    --output-file requirements-nano.txt "$@" requirements-nano.in
