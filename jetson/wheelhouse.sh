#!/usr/bin/env bash
# Packs everything that install.sh needs on a device without internet into one folder. Runs on the laptop.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'HELP'
usage: wheelhouse.sh FOLDER [OPTION]...

Makes FOLDER, or renews it: wheels for aarch64 by the lock and its hashes, fedpfl's wheel, install.sh and what belongs to
it, SHA256SUMS. Needs pip and the network. On the device: sudo FOLDER/install.sh --offline FOLDER

  --python-archive FILE python-build-standalone's cpython-3.11.…-aarch64-unknown-linux-gnu-install_only.tar.gz (or
                        …_stripped.tar.gz); without it the devices need a Python 3.11 (install.sh --python)
  --python-sha256 SUM   what its SHA-256 has to be: the release's page names it
  --python PATH         interpreter whose pip downloads and builds (default: the checkout's .venv, or python3)
  --help                this text
HELP
}

fail() {  # MESSAGE [EXIT CODE]
    printf 'error: %s\n' "$1" >&2
    exit "${2:-1}"
}

wrong_usage() { fail "$1 (--help lists the options)" 2; }

folder='' archive='' archive_sum='' python=''
while (($#)); do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --python-archive | --python-sha256 | --python)
            [[ -n ${2:-} ]] || wrong_usage "$1 needs a value"
            case $1 in
                --python-archive) archive=$2 ;;
                --python-sha256) archive_sum=$2 ;;
                --python) python=$2 ;;
            esac
            shift
            ;;
        -*) wrong_usage "unknown option $1" ;;
        *)
            [[ -z $folder ]] || wrong_usage "one folder, not also $1"
            folder=$1
            ;;
    esac
    shift
done
[[ -n $folder ]] || wrong_usage 'which folder?'
if [[ -e $folder && ! -f $folder/SHA256SUMS ]]; then
    fail "$folder exists and is no bundle; choose another folder"
fi
if [[ -n $archive ]]; then
    [[ -f $archive ]] || fail "$archive is not there"
    [[ ${archive##*/} =~ ^cpython-3\.11\.[0-9]+.*aarch64-unknown-linux-gnu-install_only(_stripped)?\.tar\.gz$ ]] \
        || fail "${archive##*/}: must be called cpython-3.11.…-aarch64-unknown-linux-gnu-install_only.tar.gz"
    sum=$(sha256sum < "$archive")
    [[ -z $archive_sum || ${sum%% *} == "$archive_sum" ]] || fail "${archive##*/}: its SHA-256 is ${sum%% *}, not $archive_sum"
fi
if [[ -z $python ]]; then
    if [[ -x $here/../.venv/bin/python ]]; then python=$here/../.venv/bin/python; else python=python3; fi
fi

# Beside the old one, so that a bundle is never half old and half new.
new=${folder%/}.new
rm -rf "$new"
mkdir -p "$new/wheels"
pip() { "$python" -m pip --disable-pip-version-check --no-input --quiet "$@"; }

echo 'wheels for aarch64'
# The lock names every package: nothing is resolved here, where pip would evaluate markers for this machine.
pip download --dest "$new/wheels" --no-deps --require-hashes --requirement "$here/requirements-nano.txt" \
    --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64
echo "fedpfl's wheel"
pip wheel --no-deps --wheel-dir "$new" "$here/.."
cp "$here"/{install.sh,uninstall.sh,training_step.py,requirements-nano.txt,policy.toml} "$new"
[[ -z $archive ]] || cp "$archive" "$new"
sums=$(cd "$new" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
printf '%s\n' "$sums" > "$new/SHA256SUMS"
rm -rf "$folder"
mv "$new" "$folder"
echo "ok: $(find "$folder/wheels" -type f | wc -l) wheels, $(du -sm "$folder" | cut -f 1) MiB in $folder"
[[ -n $archive ]] || echo 'note: without Python (--python-archive): devices need --python, a Python 3.11 of their own'
