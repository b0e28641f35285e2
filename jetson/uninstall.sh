#!/usr/bin/env bash
# Undoes what install.sh did, by the record that it left.
set -euo pipefail

# Tests put a pretended system here; it is empty on a real one.
root=${FEDPFL_SYSTEM_ROOT:-}

usage() {
    cat <<'HELP'
usage: uninstall.sh [OPTION]...

Removes what install.sh put on this machine: Python, packages, swap file, power mode and zram as they were before. Stop the
services first.

  --check               change nothing; say what would be removed
  --prefix FOLDER       where fedpfl is installed (default /opt/fedpfl)
  --keep-state          keep the state folder (the clients' personal arrays), the user it belongs to and the policy: the
                        default
  --purge-state         remove them, too; the personal arrays cannot be had back
  --help                this text
HELP
}

fail() {  # MESSAGE [EXIT CODE]
    printf 'error: %s\n' "$1" >&2
    exit "${2:-1}"
}

check_only=false prefix=/opt/fedpfl purge=false
while (($#)); do
    case $1 in
        --check) check_only=true ;;
        --keep-state) purge=false ;;
        --purge-state) purge=true ;;
        --prefix)
            [[ ${2:-} == /?* ]] || fail "--prefix needs an absolute path (--help lists the options)" 2
            prefix=$2
            shift
            ;;
        --help | -h) usage; exit 0 ;;
        *) fail "unknown option $1 (--help lists the options)" 2 ;;
    esac
    shift
done

record=$prefix/installed
if [[ ! -f $record ]]; then
    [[ -e $prefix ]] && fail "$prefix was not installed by install.sh: it has no record called installed"
    echo "ok: nothing is installed in $prefix"
    exit 0
fi
recorded() { sed -n "s/^$1=//p" "$record"; }
user=$(recorded user) state=$(recorded state) swap_file=$(recorded swap) power_mode=$(recorded power-mode)
zram=$(recorded zram)
policy=$(recorded policy) target=$(recorded target)

act() {  # DESCRIPTION COMMAND…
    if $check_only; then
        printf 'would %s\n' "$1"
    else
        printf '%s\n' "$1"
        "${@:2}"
    fi
}

running() {  # the first process that is a program of ours
    local file program
    for file in "$root"/proc/[0-9]*/cmdline; do
        if IFS= read -r -d '' program < "$file" && [[ $program == "$prefix"/* ]]; then
            file=${file%/cmdline}
            printf '%s (%s)\n' "${file##*/}" "$program"
            return
        fi
    done 2> /dev/null  # a process may end meanwhile
}

drop_swap() {
    if grep -q "^$swap_file " "$root/proc/swaps"; then swapoff "$swap_file"; fi
    rm -f "$swap_file"
    local code=0
    grep -v "^$swap_file " "$root/etc/fstab" > "$root/etc/fstab.fedpfl" || code=$?
    if ((code > 1)); then  # 1: it has no other line; on a full disk half of them would be gone
        rm -f "$root/etc/fstab.fedpfl"
        fail "$root/etc/fstab.fedpfl cannot be written; /etc/fstab is as it was"
    fi
    chmod --reference "$root/etc/fstab" "$root/etc/fstab.fedpfl"
    mv "$root/etc/fstab.fedpfl" "$root/etc/fstab"
}

process=$(running)
[[ -z $process ]] || fail "process $process still runs; stop the services first: systemctl stop 'fedpfl-*'"
if [[ $(id -u) != 0 && ( -n $user$state$swap_file$power_mode$zram$target || ! -w $prefix ) ]]; then
    fail "$prefix was installed by root; run as root (sudo)"
fi

[[ -z $swap_file ]] || act "remove the swap file $swap_file" drop_swap
[[ -z $power_mode ]] || act "set power mode $power_mode, as before" nvpmodel -m "$power_mode" < /dev/null
[[ -z $target ]] || act "start with $target, as before" systemctl set-default "$target"
[[ -z $zram ]] || act 'turn nvzramconfig off, as before' systemctl disable --now nvzramconfig
if [[ -n $state ]]; then
    if $purge; then
        act "remove the state in $state" rm -rf "$state"
        [[ -z $user ]] || act "remove the user $user" userdel "$user"
    else
        act "remove Flower's and other programs' caches in $state" rm -rf "$state/.flwr" "$state/.cache"
        echo "kept: $state${user:+ and its user $user}; to remove: rm -r $state${user:+ && userdel $user}"
    fi
fi
if [[ -n $policy && $policy != "$prefix"/* ]]; then
    if $purge; then
        act "remove the policy $policy" rm -f "$policy"
    else
        echo "kept: the policy $policy"
    fi
fi
# Last, because the record lies in it: what stopped half-way can be run again.
act "remove $prefix" rm -rf "$prefix"
$check_only || echo "ok: fedpfl is gone from $prefix"
