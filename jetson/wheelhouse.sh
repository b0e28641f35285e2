#!/usr/bin/env bash
# Packs everything that install.sh needs on a device without internet into one folder. Runs on the laptop.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The boards' Python, of python-build-standalone; the sum is the one in uv's crates/uv-python/download-metadata.json.
python_release=https://github.com/astral-sh/python-build-standalone/releases/download/20260814
python_file=cpython-3.11.16+20260814-aarch64-unknown-linux-gnu-install_only_stripped.tar.gz
python_sum=6a250f5c9326eebaa528d5d132cd66ebd1d7540cf45ac703f19e13f41d1be9b6

usage() {
    cat <<'HELP'
usage: wheelhouse.sh FOLDER [OPTION]...

Makes FOLDER, or renews it: wheels for aarch64 by the lock and its hashes, Python 3.11 of python-build-standalone,
fedpfl's wheel, install.sh and what belongs to it, SHA256SUMS. Needs pip and the network.
On the device: sudo FOLDER/install.sh --offline FOLDER

  --without-python      the devices have a Python 3.11 of their own (install.sh --python)
  --python-archive FILE take this Python and download none: a cpython-3.11.…-aarch64-unknown-linux-gnu-install_only.tar.gz
                        (or …_stripped.tar.gz)
  --python-sha256 SUM   what its SHA-256 has to be: the release's page names it
  --unverified-python   take the archive without --python-sha256, whatever is in it
  --python PATH         interpreter whose pip downloads and builds (default: the checkout's .venv, or python3)
  --sign KEY            sign SHA256SUMS with an ssh key (ssh-keygen -Y sign); verify.sh checks it
  --help                this text
HELP
}

fail() {  # MESSAGE [EXIT CODE]
    printf 'error: %s\n' "$1" >&2
    exit "${2:-1}"
}

wrong_usage() { fail "$1 (--help lists the options)" 2; }

folder='' archive='' archive_sum='' unverified=false with_python=true python='' key=''
while (($#)); do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --unverified-python) unverified=true ;;
        --without-python) with_python=false ;;
        --python-archive | --python-sha256 | --python | --sign)
            [[ -n ${2:-} ]] || wrong_usage "$1 needs a value"
            case $1 in
                --python-archive) archive=$2 ;;
                --python-sha256) archive_sum=$2 ;;
                --python) python=$2 ;;
                --sign) key=$2 ;;
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
$with_python || [[ -z $archive ]] || wrong_usage '--without-python and --python-archive exclude each other'
if [[ -n $archive ]]; then
    [[ -f $archive ]] || fail "$archive is not there"
    [[ ${archive##*/} =~ ^cpython-3\.11\.[0-9]+.*aarch64-unknown-linux-gnu-install_only(_stripped)?\.tar\.gz$ ]] \
        || fail "${archive##*/}: must be called cpython-3.11.…-aarch64-unknown-linux-gnu-install_only.tar.gz"
    sum=$(sha256sum < "$archive")
    if [[ -n $archive_sum ]]; then
        [[ ${sum%% *} == "$archive_sum" ]] || fail "${archive##*/}: its SHA-256 is ${sum%% *}, not $archive_sum"
    elif ! $unverified; then
        wrong_usage '--python-archive needs --python-sha256 SUM, which the release names, or --unverified-python'
    fi
fi
[[ -z $key || -f $key ]] || fail "$key is not there"
if [[ -z $python ]]; then
    if [[ -x $here/../.venv/bin/python ]]; then python=$here/../.venv/bin/python; else python=python3; fi
fi

# Beside the old one, so that a bundle is never half old and half new.
new=${folder%/}.new
rm -rf "$new"
mkdir -p "$new/wheels"
pip() { "$python" -m pip --disable-pip-version-check --no-input --quiet "$@"; }

download_python() {
    local url=$python_release/${python_file/+/%2B} said sum
    archive=$new/$python_file
    said=$("$python" -c 'import shutil, sys, urllib.request
shutil.copyfileobj(urllib.request.urlopen(sys.argv[1], timeout=60), open(sys.argv[2], "wb"))' "$url" "$archive" 2>&1) \
        || fail "$url cannot be downloaded (${said##*$'\n'}): get it elsewhere, and give --python-archive and --python-sha256"
    sum=$(sha256sum < "$archive")
    [[ ${sum%% *} == "$python_sum" ]] || fail "$url: its SHA-256 is ${sum%% *}, not $python_sum"
}

if $with_python && [[ -z $archive ]]; then
    echo 'Python for the devices'
    download_python
fi

echo 'wheels for aarch64'
# The lock names every package: nothing is resolved here, where pip would evaluate markers for this machine.
pip download --dest "$new/wheels" --no-deps --require-hashes --requirement "$here/requirements-nano.txt" \
    --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64
echo "fedpfl's wheel"
# Built with the lock's hatchling.
pip wheel --no-deps --no-index --find-links "$new/wheels" --wheel-dir "$new" "$here/.."
cp "$here"/{install.sh,uninstall.sh,verify.sh,training_step.py,requirements-nano.txt,policy.toml} "$new"
[[ -z $archive || $archive -ef $new/$python_file ]] || cp "$archive" "$new"
sums=$(cd "$new" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
printf '%s\n' "$sums" > "$new/SHA256SUMS"
[[ -z $key ]] || ssh-keygen -q -Y sign -f "$key" -n fedpfl "$new/SHA256SUMS"
rm -rf "$folder"
mv "$new" "$folder"
echo "ok: $(find "$folder/wheels" -type f | wc -l) wheels, $(du -sm "$folder" | cut -f 1) MiB in $folder"
$with_python || echo 'note: without Python: devices need --python, a Python 3.11 of their own'
[[ -n $key ]] || echo 'note: not signed (--sign)'
