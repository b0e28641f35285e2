#!/usr/bin/env bash
# Installs the device parts of fedpfl: Python 3.11, the locked packages, the project; then trains a few batches.
# Runs with bash 4.4 and what a stock Ubuntu 18.04 has.
set -euo pipefail
export LC_ALL=C  # a decimal point everywhere
umask 022        # the service's user has to read what root installs

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Tests put a pretended system here; it is empty on a real one.
root=${FEDPFL_SYSTEM_ROOT:-}

usage() {
    cat <<'HELP'
usage: install.sh [OPTION]...

Installs fedpfl's device parts into a folder of their own, checks them by three real training steps and prints a verdict.
May be run again at any time: what is there already stays as it is.

  --check               change nothing; say what would be done and what is in the way
  --offline FOLDER      take everything from a bundle made by wheelhouse.sh; without it packages come from PyPI
  --allowed-signers FILE
                        refuse a bundle that none of these keys has signed (wheelhouse.sh --sign); needs OpenSSH 8.2
  --target BOARD        nano (Jetson Nano, JetPack 4.6), orin (Orin, JetPack 6 or 5), pi (Raspberry Pi OS, 64 bit) or
                        auto (the default: as in the device tree)
  --prefix FOLDER       where to install (default /opt/fedpfl)
  --user NAME           system user for the services, made if it is missing; its home is the state folder
  --state FOLDER        the user's home, which uninstall.sh keeps (default /var/lib/fedpfl)
  --policy FILE         what this device takes part in; made from policy.toml beside this script if it is missing, and
                        never overwritten (default /etc/fedpfl/policy.toml with --user, else policy.toml in the prefix)
  --python PATH         a Python 3.11 that is there already, instead of one of fedpfl's own
  --wheel FILE          fedpfl's wheel (default: the bundle's, or else the checkout in which this script is)
  --lock FILE           hash-pinned packages (default requirements-nano.txt beside this script)
  --time-server HOST[:PORT]
                        compare the clock with this NTP server; a device that is more than 5 s ahead of the SuperLink
                        is refused by it
  --swap MIB            a swap file of this size, /swapfile-fedpfl, also after a restart
  --zram                turn JetPack's compressed swap (nvzramconfig) on
  --headless            no desktop after the next restart, which frees half a gigabyte of memory
  --power-mode NUMBER   JetPack's power mode (nvpmodel -m), for example 0 on a Nano with a barrel-jack supply
  --any-machine         skip the checks of board, L4T release and architecture
  --help                this text

--user, --swap, --zram, --headless, --power-mode and the default prefix need root.
The last line of the output is machine-readable: `fedpfl-install: {"verdict": "ok", "changed": false, …}`.
Exit code 0: installed and checked (with --check: nothing is in the way); 1: not; 2: wrong usage.
HELP
}

# -- words --

json_text() {  # TEXT: as a JSON string
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "${text//[[:cntrl:]]/ }"
}

explained=false
fail() {  # MESSAGE [EXIT CODE]
    explained=true
    printf 'error: %s\n' "$1" >&2
    printf 'fedpfl-install: {"verdict": "failed", "error": %s}\n' "$(json_text "$1")"
    exit "${2:-1}"
}

wrong_usage() { fail "$1 (--help lists the options)" 2; }

problems=0
good() { printf '  ok       %s\n' "$1"; }
warning() { printf '  warning  %s\n' "$1"; }
problem() {
    problems=$((problems + 1))
    printf '  problem  %s\n' "$1"
}

check_only=false
changed=false
doing='start'
act() {  # DESCRIPTION COMMAND…: do it; with --check only say it
    changed=true
    doing=$1
    if $check_only; then
        printf '  would    %s\n' "$doing"
    else
        printf '  doing    %s\n' "$doing"
        "${@:2}"  # no `|| fail`: bash would go on after a command in it that failed
    fi
}

trap '[[ $? == 0 ]] || $explained || fail "could not $doing; the lines above say why"' EXIT

# -- options --

bundle='' signers='' target=auto prefix=/opt/fedpfl user='' state=/var/lib/fedpfl python='' wheel='' lock='' time_server=''
policy='' swap='' zram=false headless=false power_mode='' any_machine=false

whole_number() {  # OPTION VALUE
    [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ ]] || wrong_usage "$1 $2: must be a whole number"
}

while (($#)); do
    case $1 in
        --check) check_only=true ;;
        --zram) zram=true ;;
        --headless) headless=true ;;
        --any-machine) any_machine=true ;;
        --help | -h) usage; exit 0 ;;
        --offline | --allowed-signers | --target | --prefix | --user | --state | --policy | --python | --wheel | --lock | --time-server | --swap | --power-mode)
            [[ -n ${2:-} ]] || wrong_usage "$1 needs a value"
            case $1 in
                --offline) bundle=$2 ;;
                --allowed-signers) signers=$2 ;;
                --target) target=$2 ;;
                --prefix) prefix=$2 ;;
                --user) user=$2 ;;
                --state) state=$2 ;;
                --policy) policy=$2 ;;
                --python) python=$2 ;;
                --wheel) wheel=$2 ;;
                --lock) lock=$2 ;;
                --time-server) time_server=$2 ;;
                --swap) swap=$2; whole_number "$1" "$2" ;;
                --power-mode) power_mode=$2; whole_number "$1" "$2" ;;
            esac
            shift
            ;;
        *) wrong_usage "unknown option $1" ;;
    esac
    shift
done
[[ $target =~ ^(nano|orin|pi|auto)$ ]] || wrong_usage "--target $target: must be nano, orin, pi or auto"
[[ $prefix == /?* ]] || wrong_usage "--prefix $prefix: must be an absolute path"
[[ $state == /?* ]] || wrong_usage "--state $state: must be an absolute path"
[[ -z $policy || $policy == /?* ]] || wrong_usage "--policy $policy: must be an absolute path"
[[ -z $user || $user =~ ^[a-z_][a-z0-9_-]{0,31}$ ]] || wrong_usage "--user $user: must be a name in lower case"
[[ -z $signers || -n $bundle ]] || wrong_usage '--allowed-signers needs --offline'
[[ $swap != 0 ]] || wrong_usage "--swap 0: must be at least 1 (MiB)"

if [[ -z $policy && -n $user ]]; then policy=$root/etc/fedpfl/policy.toml; fi
policy=${policy:-$prefix/policy.toml}
lock_given=$lock
lock=${lock:-$here/requirements-nano.txt}
venv=$prefix/venv
# What uninstall.sh has to undo, one key=value a line.
record=$prefix/installed
swap_file=$root/swapfile-fedpfl

# -- checks: they change nothing --

contents() { tr -d '\0' 2> /dev/null < "$1" || true; }

board() {
    case $1 in
        *'Jetson Nano'*) echo nano ;;
        *'Orin'*) echo orin ;;
        'Raspberry Pi'*) echo pi ;;
        *) echo unknown ;;
    esac
}

check_board() {
    local model found release=''
    if $any_machine; then
        target=any
        warning 'board and L4T release are not looked at (--any-machine)'
        return
    fi
    model=$(contents "$root/proc/device-tree/model")
    found=$(board "$model")
    if [[ $found == unknown ]]; then
        problem "board: ${model:-no device tree} is neither Jetson Nano, Orin Nano nor Raspberry Pi; --any-machine installs anyway"
        return
    fi
    if [[ $target != auto && $target != "$found" ]]; then
        problem "board: $model is not --target $target"
        return
    fi
    target=$found
    good "board: $model (target $target)"
    [[ $target != pi ]] || return 0
    # "# R32 (release), REVISION: 7.1, GCID: …"
    [[ $(contents "$root/etc/nv_tegra_release") =~ R([0-9]+)\ .*REVISION:\ ([0-9]+)\.([0-9]+) ]] \
        && release=${BASH_REMATCH[1]}.${BASH_REMATCH[2]}.${BASH_REMATCH[3]}
    case $target:$release in
        *:) problem 'L4T: /etc/nv_tegra_release does not name a release; is this a JetPack system?' ;;
        nano:32.[67].* | orin:36.*) good "L4T: $release" ;;
        nano:*) problem "L4T: $release; a Nano needs JetPack 4.6 (L4T 32.6 or 32.7)" ;;
        # The C library of JetPack 5 is new enough for the same packages.
        orin:35.*) warning "L4T: $release (JetPack 5); packages were chosen for JetPack 6 (L4T 36)" ;;
        orin:*) problem "L4T: $release; an Orin needs JetPack 6 (L4T 36) or 5 (L4T 35)" ;;
    esac
}

check_system() {
    local machine bits libc
    machine=$(uname -m)
    bits=$(getconf LONG_BIT)
    if [[ $machine == aarch64 && $bits == 64 ]]; then
        good 'architecture: aarch64'
    elif [[ $machine == aarch64 ]]; then
        problem "architecture: a 64-bit kernel with $bits-bit programs; install the 64-bit system"
    elif ! $any_machine; then
        problem "architecture: $machine; the locked packages are for aarch64"
    elif [[ -z $lock_given ]]; then
        problem "architecture: $machine; requirements-nano.txt is for aarch64, so give --lock"
    else
        warning "architecture: $machine (--any-machine)"
    fi
    libc=$(getconf GNU_LIBC_VERSION 2> /dev/null || true)
    if [[ $libc =~ ^glibc\ 2\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 17)); then
        good "C library: $libc"
    else
        problem "C library: ${libc:-not glibc}; the packages need glibc 2.17 or later"
    fi
    local tool
    for tool in sha256sum tar; do
        command -v "$tool" > /dev/null || problem "command: $tool is missing"
    done
}

existing() {  # PATH: itself, or the nearest folder above that is there
    local path=$1
    until [[ -e $path ]]; do path=$(dirname "$path"); done
    printf '%s\n' "$path"
}

least_memory=1500 good_memory=3500 # MiB; one SuperNode and the worker; three and the worker (docs/devices/jetson.md)
least_disk=2500                    # MiB; installed, with room for what pip unpacks meanwhile

check_resources() {
    local memory disk folder
    memory=$(($(awk '$1 == "MemTotal:" {print $2}' "$root/proc/meminfo") / 1024))
    if ((memory < least_memory)); then
        problem "memory: $memory MiB; one client needs $least_memory"
    elif ((memory < good_memory)); then
        warning "memory: $memory MiB; three clients need $good_memory: start fewer, or use --swap 2048"
    else
        good "memory: $memory MiB"
    fi
    folder=$(existing "$prefix")
    disk=$(($(df -Pk "$folder" | awk 'NR == 2 {print $4}') / 1024))
    if packages_installed; then
        good "disk: $disk MiB free in $folder; the packages are there"
    elif ((disk < least_disk + ${swap:-0})); then
        problem "disk: $disk MiB free in $folder; needs $((least_disk + ${swap:-0}))"
    else
        good "disk: $disk MiB free in $folder"
    fi
}

# RFC 4330: a request of 48 bytes, and the seconds since 1900 in bytes 40 to 43 of the answer.
ntp_seconds() {  # HOST PORT: seconds since 1970
    local -a answer
    exec 3<> "/dev/udp/$1/$2" || return 1
    printf '\043%b' "$(printf '\\000%.0s' {1..47})" >&3
    read -r -a answer <<< "$(timeout 3 head -c 48 <&3 | od -An -v -tu1 | tr '\n' ' ')"
    # Mode 4 is a server's; stratum 0 means that it refuses.
    ((${#answer[@]} == 48 && (answer[0] & 7) == 4 && answer[1] > 0)) || return 1
    printf '%s\n' $(((answer[40] << 24) + (answer[41] << 16) + (answer[42] << 8) + answer[43] - 2208988800))
}

check_clock() {
    local now ahead server
    now=$(date +%s)
    if ((now < 1767225600)); then  # 2026-01-01: earlier than this script, so the clock was not set after power-up
        problem "clock: $(date -u +%F); set it: certificates are not valid yet, and a signature of the wrong time is refused"
    elif [[ -z $time_server ]]; then
        good "clock: $(date -u +%F), compared with nothing (--time-server)"
    elif ! server=$(ntp_seconds "${time_server%:*}" "$([[ $time_server == *:* ]] && echo "${time_server##*:}" || echo 123)" 2> /dev/null); then
        problem "clock: no answer from the time server $time_server"
    else
        ahead=$(($(date +%s) - server))
        if ((ahead > 5 || ahead < -300)); then
            problem "clock: $ahead s ahead of $time_server; SuperLinks refuse devices more than 5 s ahead or 305 s behind: synchronise it"
        elif ((ahead < -5)); then
            warning "clock: $((-ahead)) s behind $time_server; synchronise it"
        else
            good "clock: within 5 s of $time_server"
        fi
    fi
}

check_rights() {
    local needs=''
    [[ -z $user ]] || needs+=' --user'
    [[ -z $swap ]] || needs+=' --swap'
    [[ -z $power_mode ]] || needs+=' --power-mode'
    ! $zram || needs+=' --zram'
    ! $headless || needs+=' --headless'
    if [[ $(id -u) != 0 ]]; then
        [[ -z $needs ]] || problem "rights:$needs must be run as root (sudo)"
        [[ -w $(existing "$prefix") ]] || problem "rights: $prefix cannot be written; run as root (sudo) or choose --prefix"
        [[ -e $policy || -w $(existing "$policy") ]] || problem "rights: $policy cannot be written; choose --policy"
    fi
    if [[ -d $prefix && ! -f $record && -n $(ls -A "$prefix") ]]; then
        problem "prefix: $prefix holds something that this script did not install; choose another --prefix"
    fi
    # uninstall.sh --purge-state removes it: it must be nobody else's.
    if [[ -n $user && -d $state && $(stat -c %U "$state") != "$user" ]]; then
        problem "state: $state belongs to $(stat -c %U "$state"), not to $user; choose another --state"
    fi
    if [[ -n $power_mode ]] && ! command -v nvpmodel > /dev/null; then
        problem 'power mode: there is no nvpmodel here; leave out --power-mode'
    fi
    if $zram && ! systemctl cat nvzramconfig > /dev/null 2>&1; then
        problem 'zram: there is no nvzramconfig here; use --swap instead'
    fi
}

check_sources() {
    local version found
    [[ -f $lock ]] || problem "lock: $lock is not there"
    [[ -e $policy || -f $here/policy.toml ]] || problem "policy: $here/policy.toml is not there"
    if [[ -n $bundle ]]; then
        if ! bundle=$(cd "$bundle" 2> /dev/null && pwd) || [[ ! -f $bundle/SHA256SUMS ]]; then
            problem 'bundle: the folder of --offline has no SHA256SUMS; make it with wheelhouse.sh'
            bundle=''
        elif [[ -n $signers ]]; then
            if found=$("$here/verify.sh" "$bundle" "$signers" 2>&1); then
                good "bundle: ${found#ok: }"
            else
                problem "bundle: ${found#error: }"
            fi
        elif ! found=$(cd "$bundle" && sha256sum --check --strict --quiet SHA256SUMS 2>&1); then
            problem "bundle: damaged: $(head -n 1 <<< "$found")"
        else
            good "bundle: $(wc -l < "$bundle/SHA256SUMS") files are as they were packed"
        fi
    fi
    if [[ -n $python ]]; then
        version=$("$python" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' 2> /dev/null || true)
        [[ $version == 3.11 ]] || problem "python: $python is not a Python 3.11 with venv and ensurepip${version:+ but $version}"
    elif [[ -n $bundle ]]; then
        archive=$(only "$bundle"/cpython-3.11.*aarch64*.tar.gz) || problem "python: the bundle has no archive of Python 3.11; give --python"
    elif ! command -v uv > /dev/null; then
        problem 'python: neither --offline, --python nor the command uv (https://docs.astral.sh/uv/) is there'
    fi
    if [[ -n $wheel ]]; then
        [[ -f $wheel ]] || problem "fedpfl: $wheel is not there"
    elif [[ -n $bundle ]]; then
        wheel=$(only "$bundle"/fedpfl-*.whl) || problem 'fedpfl: the bundle must have one wheel of it'
    elif [[ ! -f $here/../pyproject.toml ]]; then
        problem 'fedpfl: this script is not in a checkout; give --wheel or --offline'
    fi
}

only() {  # PATH…: the one file that the pattern found
    (($# == 1)) && [[ -f $1 ]] && printf '%s\n' "$1"
}

# -- steps: each looks first whether it is needed --

recorded() { sed -n "s/^$1=//p" "$record" 2> /dev/null || true; }
remember() { printf '%s=%s\n' "$1" "$2" >> "$record"; }
digest() { sha256sum | cut -d ' ' -f 1; }
stamp() { cat "$1" 2> /dev/null || true; }

make_prefix() {
    mkdir -p "$prefix"
    printf '%s\n' '# Made by install.sh, read by uninstall.sh.' > "$record"
}

make_user() {
    useradd --system --no-create-home --home-dir "$state" --shell /usr/sbin/nologin "$user"
    remember user "$user"
}

make_state() {
    install -d -m 0700 -o "$user" -g "$(id -gn "$user")" "$state"
}

make_policy() {
    local folder
    folder=$(dirname "$policy")
    mkdir -p "$folder"
    cp "$here/policy.toml" "$policy.new"
    chmod 0644 "$policy.new"
    mv "$policy.new" "$policy"
    [[ -n $(recorded policy) ]] || remember policy "$policy"
}

unpack_python() {
    rm -rf "$prefix/python.new"
    mkdir "$prefix/python.new"
    tar -xzf "$archive" -C "$prefix/python.new"
    "$prefix/python.new/python/bin/python3.11" -c 'import ensurepip, venv'
    digest < "$archive" > "$prefix/python.new/python/.archive"
    rm -rf "$prefix/python"
    mv "$prefix/python.new/python" "$prefix/python"
    rmdir "$prefix/python.new"
}

fetch_python() { UV_PYTHON_INSTALL_DIR=$prefix/python UV_PYTHON_INSTALL_BIN=0 uv python install --quiet 3.11; }

install_python() {
    if [[ -n $python ]]; then
        return
    elif [[ -n $bundle ]]; then
        [[ $(stamp "$prefix/python/.archive") == "$(digest < "$archive")" ]] \
            || act "unpack ${archive##*/} into $prefix/python" unpack_python
        python=$prefix/python/bin/python3.11
    else
        only "$prefix"/python/cpython-3.11.*/bin/python3.11 > /dev/null || act "fetch Python 3.11 into $prefix/python" fetch_python
        $check_only || python=$(only "$prefix"/python/cpython-3.11.*/bin/python3.11) || fail "uv left no Python 3.11 in $prefix/python"
    fi
}

packages_installed() { [[ -f $lock && $(stamp "$venv/.packages") == "$(digest < "$lock")" ]]; }

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input --quiet "$@"; }

install_packages() {
    local -a from=()
    [[ -z $bundle ]] || from=(--no-index --find-links "$bundle/wheels")
    # From scratch, so that nothing of an older lock stays; a stamp at the end marks it as complete.
    "$python" -m venv --clear "$venv"
    pip install --require-hashes --only-binary :all: --no-cache-dir "${from[@]}" --requirement "$lock"
    digest < "$lock" > "$venv/.packages"
}

project_digest() {
    if [[ -n $wheel ]]; then
        digest < "$wheel"
    else
        (cd "$here/.." && find fedpfl pyproject.toml -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | digest)
    fi
}

install_project() {
    # The packages are the lock's: fedpfl's own list has what a simulation needs as well.
    # A checkout is built with the lock's hatchling: an isolated build would fetch one without a hash.
    pip install --no-deps --no-index --no-build-isolation --force-reinstall --no-cache-dir "${wheel:-$here/..}"
    project_digest > "$venv/.fedpfl"
}

in_use() { grep -q "^$1 " "$root/proc/swaps"; }

make_swap() {
    if in_use "$swap_file"; then swapoff "$swap_file"; fi
    rm -f "$swap_file"
    [[ -n $(recorded swap) ]] || remember swap "$swap_file"  # first: what stops half-way is known to uninstall.sh
    (umask 077 && fallocate -l "${swap}M" "$swap_file")
    mkswap "$swap_file" > /dev/null
    if ! swapon "$swap_file"; then
        rm -f "$swap_file"
        fail "swap: $swap_file cannot be turned on; its file system has no swap files: leave out --swap, or use --zram"
    fi
}

enter_swap() {
    cp -p "$root/etc/fstab" "$root/etc/fstab.fedpfl"
    # A last line without an end would become one with ours.
    [[ -z $(tail -c 1 "$root/etc/fstab") ]] || echo >> "$root/etc/fstab.fedpfl"
    printf '%s none swap sw 0 0\n' "$swap_file" >> "$root/etc/fstab.fedpfl"
    mv "$root/etc/fstab.fedpfl" "$root/etc/fstab"
}

current_power_mode() { nvpmodel -q 2> /dev/null | tail -n 1; }

set_power_mode() {
    [[ -n $(recorded power-mode) ]] || remember power-mode "$(current_power_mode)"
    nvpmodel -m "$power_mode" < /dev/null
    # Some modes of an Orin begin with a restart.
    [[ $(current_power_mode) == "$power_mode" ]] \
        || fail "power mode: it is still $(current_power_mode); restart the board, and run this again"
}

start_zram() {
    systemctl enable --now nvzramconfig
    remember zram on
}

leave_desktop() {
    [[ -n $(recorded target) ]] || remember target "$(systemctl get-default)"
    systemctl set-default multi-user.target
}

configure() {
    if [[ -n $swap ]]; then
        if [[ $(stat -c %s "$swap_file" 2> /dev/null) != $((swap * 1048576)) ]] || ! in_use "$swap_file"; then
            act "make a swap file of $swap MiB" make_swap
        fi
        grep -q "^$swap_file " "$root/etc/fstab" || act "enter it into /etc/fstab" enter_swap
    fi
    if $zram && ! systemctl is-enabled --quiet nvzramconfig; then act 'turn nvzramconfig on' start_zram; fi
    if $headless && [[ $(systemctl get-default) != multi-user.target ]]; then act 'turn the desktop off, from the next start' leave_desktop; fi
    if [[ -n $power_mode && $(current_power_mode) != "$power_mode" ]]; then
        act "set power mode $power_mode" set_power_mode
    fi
}

training_step() {
    local -a as=()
    # Not with the home of root, which Flower would try to read.
    [[ -z $user ]] || as=(runuser -u "$user" -- env "HOME=$state")
    # From standard input: the user may not be able to read the folder of this script.
    (cd / && "${as[@]}" "$venv/bin/python" -) < "$here/training_step.py"
}

field() { sed -n "s/.*\"$1\": \"\{0,1\}\([^,\"}]*\).*/\1/p" <<< "$2"; }

verify() {
    local report code=0
    report=$(training_step) || code=$?
    case $code in
        0) ;;
        132) fail 'the training step ended with an illegal instruction: the lock has a torch that this CPU cannot run' ;;
        137) fail 'the training step was killed: not enough memory; use --swap 2048' ;;
        *) fail "the training step failed (exit code $code)" ;;
    esac
    printf 'ok: fedpfl %s in %s: loss %.6f after %s training steps, as expected; %.1f s a step\n' "$(field fedpfl "$report")" \
        "$prefix" "$(field loss "$report")" "$(field steps "$report")" "$(field seconds-per-step "$report")"
    printf 'fedpfl-install: {"verdict": "ok", "changed": %s, "target": "%s", %s\n' "$changed" "$target" "${report#\{}"
}

main() {
    echo 'Checks'
    check_board
    check_system
    check_sources
    check_resources
    check_clock
    check_rights
    ((problems == 0)) || fail "$problems of the checks found a problem; nothing was changed"

    echo 'Steps'
    [[ -f $record ]] || act "make $prefix" make_prefix
    if [[ -n $user ]]; then
        id -u "$user" > /dev/null 2>&1 || act "make the system user $user" make_user
        [[ -d $state ]] || act "make $state, for $user alone" make_state
        $check_only || [[ -n $(recorded state) ]] || remember state "$state"
    fi
    [[ -e $policy ]] || act "write the policy $policy" make_policy
    install_python
    if ! packages_installed; then
        act "install the packages of ${lock##*/} into $venv" install_packages
        act "install fedpfl" install_project
    elif [[ $(stamp "$venv/.fedpfl") != "$(project_digest)" ]]; then
        act "install fedpfl" install_project
    fi
    configure
    $changed || echo '  ok       everything is there already'
    if $check_only; then
        printf 'fedpfl-install: {"verdict": "check", "changed": %s, "target": "%s"}\n' "$changed" "$target"
    else
        echo 'Training step'
        verify
    fi
}

archive=''
main
