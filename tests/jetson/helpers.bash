# A pretended board for the scripts: files below $BOARD/system, and commands in $BOARD/bin that write down how they were called.
# shellcheck shell=bash
# The bodies of pretended commands are not for this shell to expand; bats sets status and output.
# shellcheck disable=SC2016,SC2154

REPOSITORY=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

command_() {  # NAME BODY: a pretended command
    printf '#!/bin/bash\n%s\n' "$2" > "$BOARD/bin/$1"
    chmod +x "$BOARD/bin/$1"
}

calls() { cat "$BOARD/calls"; }

setup_board() {  # a stock Jetson Nano with JetPack 4.6.1, as root; made once for a file of tests
    local made=$BATS_FILE_TMPDIR/board
    [[ -d $made ]] || BOARD=$made make_board
    BOARD=$BATS_TEST_TMPDIR/board
    export BOARD FEDPFL_SYSTEM_ROOT=$BOARD/system
    PREFIX=$BOARD/opt/fedpfl
    STATE=$BOARD/state
    cp -a "$made" "$BOARD"
    PATH=$BOARD/bin:$PATH
}

make_board() {
    mkdir -p "$BOARD/bin" "$BOARD/system/proc/device-tree" "$BOARD/system/etc" "$BOARD/opt" "$BOARD/bundle/wheels"
    printf 'NVIDIA Jetson Nano Developer Kit\0' > "$BOARD/system/proc/device-tree/model"
    echo '# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref, EABI: aarch64, DATE: Sat Feb 19 17:05:08 UTC 2022' \
        > "$BOARD/system/etc/nv_tegra_release"
    echo 'MemTotal:        4059424 kB' > "$BOARD/system/proc/meminfo"
    echo 'Filename Type Size Used Priority' > "$BOARD/system/proc/swaps"
    echo '/dev/root / ext4 defaults 0 1' > "$BOARD/system/etc/fstab"
    : > "$BOARD/calls"

    command_ uname 'echo "${MACHINE:-aarch64}"'
    command_ getconf 'case $1 in LONG_BIT) echo "${BITS:-64}" ;; *) echo "${LIBC:-glibc 2.27}" ;; esac'
    command_ df 'echo Filesystem 1024-blocks Used Available Capacity Mounted; echo "/dev/root 0 0 ${FREE:-9000000} 0% /"'
    # Users: those that useradd made.
    command_ id 'case $* in
        "-u") echo "${UID_HERE:-0}" ;;
        "-u "*) grep -qx "$2" "$BOARD/users" 2> /dev/null && echo 999 ;;
        *) echo "${@: -1}" ;;
    esac'
    command_ useradd 'echo "useradd $*" >> "$BOARD/calls"; echo "${@: -1}" >> "$BOARD/users"'
    command_ userdel 'echo "userdel $*" >> "$BOARD/calls"'
    command_ install 'echo "install $*" >> "$BOARD/calls"; mkdir -p "${@: -1}"'
    command_ runuser 'echo "runuser $2 ${5/$BOARD/}" >> "$BOARD/calls"; shift 3; exec "$@"'
    command_ nvpmodel 'case $1 in
        -q) echo "NV Power Mode: MAXN"; cat "$BOARD/power" 2> /dev/null || echo 1 ;;
        -m) echo "nvpmodel $*" >> "$BOARD/calls"; echo "$2" > "$BOARD/power" ;;
    esac'
    command_ systemctl 'case $1 in
        cat) true ;;
        get-default) cat "$BOARD/target" 2> /dev/null || echo graphical.target ;;
        set-default) echo "systemctl $*" >> "$BOARD/calls"; echo "$2" > "$BOARD/target" ;;
        is-enabled) [[ -e $BOARD/zram ]] ;;
        enable) echo "systemctl $*" >> "$BOARD/calls"; touch "$BOARD/zram" ;;
        disable) echo "systemctl $*" >> "$BOARD/calls"; rm "$BOARD/zram" ;;
    esac'
    command_ stat 'if [[ $2 == %U ]]; then echo "${OWNER:-fedpfl}"; else exec /usr/bin/stat "$@"; fi'
    command_ fallocate 'truncate -s "$2" "$3"'
    command_ mkswap 'echo mkswap >> "$BOARD/calls"'
    command_ swapon 'echo "$1 file 1 0 -2" >> "$BOARD/system/proc/swaps"'
    command_ swapoff 'echo swapoff >> "$BOARD/calls"; sed -i 2d "$BOARD/system/proc/swaps"'
    # Python: makes environments that hold itself, "installs" by writing it down, and answers as training_step.py does.
    command_ python3.11 'case $* in
        "-c "*) echo 3.11 ;;
        "-m venv --clear "*)
            echo venv >> "$BOARD/calls"; rm -rf "$4"; mkdir -p "$4/bin"; cp "$BOARD/bin/python3.11" "$4/bin/python" ;;
        "-m pip "*)
            echo "pip ${*: 6}" >> "$BOARD/calls"
            [[ ! -e $BOARD/pip-fails ]] || { echo "ERROR: no space left" >&2; exit 1; } ;;
        "-")
            cat > /dev/null
            [[ ! -e $BOARD/step-ends-with ]] || exit "$(cat "$BOARD/step-ends-with")"
            echo "{\"loss\": 2.302013, \"steps\": 3, \"seconds-per-step\": 1.234, \"fedpfl\": \"0.1.0\"}" ;;
        *) exit 99 ;;
    esac'

    # A bundle, with an archive that holds the pretended Python.
    mkdir -p "$BOARD/archive/python/bin"
    cp "$BOARD/bin/python3.11" "$BOARD/archive/python/bin"
    tar -czf "$BOARD/bundle/cpython-3.11.9+1-aarch64-unknown-linux-gnu-install_only.tar.gz" -C "$BOARD/archive" python
    echo wheel > "$BOARD/bundle/fedpfl-0.1.0-py3-none-any.whl"
    seal
}

seal() { (cd "$BOARD/bundle" && find . -type f -not -name 'SHA256SUMS*' -exec sha256sum {} + > ../sums && mv ../sums SHA256SUMS); }

install_fedpfl() {
    run "$REPOSITORY/jetson/install.sh" --offline "$BOARD/bundle" --prefix "$PREFIX" --state "$STATE" "$@"
}

uninstall_fedpfl() { run "$REPOSITORY/jetson/uninstall.sh" --prefix "$PREFIX" "$@"; }

# Everything that is on the pretended board, with its content.
everything() { (cd "$BOARD" && find . -type f -exec sha256sum {} + && find . -type d) | sort; }

status_is() { [[ $status == "$1" ]] || { printf 'exit code %s:\n%s\n' "$status" "$output"; return 1; }; }

says() { [[ $output == *"$1"* ]] || { printf 'does not say: %s\n%s\n' "$1" "$output"; return 1; }; }
