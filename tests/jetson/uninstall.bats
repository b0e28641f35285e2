load helpers

setup() {
    setup_board
    before=$(everything | grep -v -e ' ./calls' -e ' ./users' -e ' ./power')
    echo 1 > "$BOARD/power"
    install_fedpfl --user fedpfl --swap 1 --power-mode 0 --zram
    status_is 0
    mkdir -p "$STATE/.fedpfl/state/RUN" "$STATE/.cache"
    echo personal > "$STATE/.fedpfl/state/RUN/client-00000"
    : > "$BOARD/calls"
}

@test "by default the personal state, its user and the policy stay, and nothing else" {
    policy=$BOARD/system/etc/fedpfl/policy.toml
    uninstall_fedpfl
    status_is 0
    says "kept: $STATE and its user fedpfl"
    [[ $(cat "$STATE/.fedpfl/state/RUN/client-00000") == personal && ! -e $STATE/.cache ]]
    [[ $(calls) == $'swapoff\nnvpmodel -m 1\nsystemctl disable --now nvzramconfig' ]]
    says "kept: the policy $policy"
    rm -r "$STATE" "$policy"
    rmdir "${policy%/*}"
    [[ $(everything | grep -v -e ' ./calls' -e ' ./users' -e ' ./power') == "$before" ]]
}

@test "--purge-state leaves nothing" {
    uninstall_fedpfl --purge-state
    status_is 0
    calls | grep -qx 'userdel fedpfl'
    rmdir "$BOARD/system/etc/fedpfl"  # where keys lie, too
    [[ $(everything | grep -v -e ' ./calls' -e ' ./users' -e ' ./power') == "$before" ]]
}

@test "--check changes nothing" {
    now=$(everything)
    uninstall_fedpfl --check --purge-state
    status_is 0
    says "would remove the state in $STATE"
    says "would remove $PREFIX"
    [[ $(everything) == "$now" ]]
}

@test "a second run finds nothing" {
    uninstall_fedpfl
    uninstall_fedpfl
    status_is 0
    says "nothing is installed in $PREFIX"
}

@test "a user that was there before stays" {
    sed -i '/^user=/d' "$PREFIX/installed"
    uninstall_fedpfl --purge-state
    status_is 0
    [[ $(calls) != *userdel* ]]
}

@test "refused: while something runs, without root, a folder that install.sh did not make" {
    mkdir "$BOARD/system/proc/77"
    printf '%s\0' "$PREFIX/venv/bin/python" "$PREFIX/venv/bin/fedpfl-worker" > "$BOARD/system/proc/77/cmdline"
    uninstall_fedpfl
    status_is 1
    says "process 77 ($PREFIX/venv/bin/python) still runs; stop the services first"
    rm -r "$BOARD/system/proc/77"
    UID_HERE=1000 uninstall_fedpfl
    status_is 1
    says 'run as root'
    rm "$PREFIX/installed"
    uninstall_fedpfl
    status_is 1
    says 'was not installed by install.sh'
    [[ -x $PREFIX/venv/bin/python ]]
}

@test "on a full disk fstab stays as it was" {
    printf '# %s\n' {1..400} >> "$BOARD/system/etc/fstab"
    fstab=$(cat "$BOARD/system/etc/fstab")
    run bash -c 'ulimit -f 1; trap "" XFSZ; "$0" --prefix "$1"' "$REPOSITORY/jetson/uninstall.sh" "$PREFIX"
    status_is 1
    says 'fstab.fedpfl cannot be written; /etc/fstab is as it was'
    [[ $(cat "$BOARD/system/etc/fstab") == "$fstab" && -f $PREFIX/installed ]]
    uninstall_fedpfl
    status_is 0
    ! grep -q swapfile "$BOARD/system/etc/fstab"
}
