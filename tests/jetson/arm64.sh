#!/usr/bin/env bash
# The whole way of a device, for real, on an emulated Cortex-A57: bundle, install.sh, its training steps, a model of its
# own that predicts, uninstall.sh.
#
# The device is a Debian 12 root for arm64 whose programs QEMU's user mode runs. What it does not show: glibc 2.27, kernel
# 4.9, speed. Needs root and the network. All mounts and processes are in namespaces of this script and end with it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
qemu=/usr/bin/qemu-aarch64-static
binfmt=/proc/sys/fs/binfmt_misc

skip() { echo "skipped: $1"; exit 0; }

if [[ ${1:-} != --inside ]]; then
    [[ $(id -u) == 0 ]] || skip 'emulation needs root'
    for tool in "$qemu" debootstrap dpkg-deb unshare; do
        command -v "$tool" > /dev/null \
            || skip "$tool is missing (Debian, Ubuntu: apt-get install qemu-user-static debootstrap)"
    done
    unshare --mount --pid --fork true 2> /dev/null || skip 'this machine gives no namespaces'
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$work"
    exit
fi

work=$2
device=$work/device

registered=false
forget() { if $registered; then echo -1 > "$binfmt/fedpfl-aarch64"; fi; }
trap forget EXIT
[[ -w $binfmt/register ]] || mount -t binfmt_misc binfmt_misc "$binfmt" 2> /dev/null || skip 'binfmt_misc cannot be mounted'
if ! grep -qs '^enabled' "$binfmt"/*aarch64; then
    # The head of an ELF file for aarch64; F: the emulator is opened now, so that it need not be in the device's root.
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    echo ":fedpfl-aarch64:M::$magic:$mask:$qemu:F" > "$binfmt/register" || skip 'binfmt_misc takes no interpreter'
    registered=true
fi

emulated() { QEMU_CPU=cortex-a57 PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$device" "$@"; }

echo '== a Debian root for arm64'
debootstrap --foreign --arch=arm64 --variant=minbase --include=python3-venv bookworm "$device" > "$work/debootstrap.log" \
    || { tail -n 5 "$work/debootstrap.log"; skip 'no Debian packages for arm64 can be had'; }
# Instead of debootstrap's second stage, which configures every package and takes minutes under emulation.
for package in "$device"/var/cache/apt/archives/*.deb; do dpkg-deb --extract "$package" "$device"; done
ln -sf mawk "$device/usr/bin/awk"
mount -t proc proc "$device/proc"
mount --rbind /dev "$device/dev"

echo '== the bundle'
"$repository/jetson/wheelhouse.sh" "$device/bundle" --without-python ${PYTHON:+--python "$PYTHON"}

echo '== install.sh on the emulated board'
install=(/bundle/install.sh --offline /bundle --any-machine --python /usr/bin/python3.11)
emulated "${install[@]}" --check | tail -n 1 | grep '"changed": true'
[[ ! -e $device/opt/fedpfl ]]
# Compiling thousands of modules takes emulation minutes and a board seconds.
time PIP_NO_COMPILE=1 emulated "${install[@]}" | tee "$work/first.log"
grep -q '^fedpfl-install: {"verdict": "ok", "changed": true' "$work/first.log"
du -sm "$device/opt/fedpfl"

echo '== again: nothing to do'
emulated "${install[@]}" --check | tail -n 1 | grep '"changed": false'

echo '== a model of its own'
mkdir "$device/opt/own"
cp "$here/own_model.py" "$device/opt/own/"
emulated /opt/fedpfl/venv/bin/python /opt/own/own_model.py /opt/own
emulated /opt/fedpfl/venv/bin/fedpfl-worker predict /opt/own/state/step/client-00000/model /opt/own/own.npz > "$work/predicted"
[[ $(grep -c '"class":' "$work/predicted") == 80 ]]

echo '== uninstall.sh'
emulated /bundle/uninstall.sh
[[ ! -e $device/opt/fedpfl ]]
echo 'ok: installed, trained with the expected loss, predicted with its own model, and removed'
