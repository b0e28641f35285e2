load helpers

setup() { setup_board; }

@test "a Nano: Python, packages by hash and without an index, fedpfl without its own list, one-line verdict" {
    install_fedpfl
    status_is 0
    says 'board: NVIDIA Jetson Nano Developer Kit (target nano)'
    says 'L4T: 32.7.1'
    says "ok: fedpfl 0.1.0 in $PREFIX: loss 2.302013 after 3 training steps, as expected; 1.2 s a step"
    says 'fedpfl-install: {"verdict": "ok", "changed": true, "target": "nano", "loss": 2.302013,'
    [[ -x $PREFIX/python/bin/python3.11 && -x $PREFIX/venv/bin/python ]]
    calls | grep -q -- "install --require-hashes --only-binary :all: --no-cache-dir --no-index --find-links $BOARD/bundle/wheels"
    calls | grep -q -- "install --no-deps --no-index --no-build-isolation --force-reinstall --no-cache-dir $BOARD/bundle/fedpfl-0.1.0-py3-none-any.whl"
}

@test "the machine-readable line is JSON" {
    install_fedpfl
    status_is 0
    sed -n 's/^fedpfl-install: //p' <<< "$output" | python3 -c 'import json, sys; assert json.load(sys.stdin)["loss"] == 2.302013'
    command_ uname 'echo "mips \"\\"'
    install_fedpfl --target pi
    status_is 1
    sed -n 's/^fedpfl-install: //p' <<< "$output" | python3 -c 'import json, sys; assert json.load(sys.stdin)["verdict"] == "failed"'
}

@test "--check changes nothing and says what would be done" {
    before=$(everything)
    install_fedpfl --check --user fedpfl --swap 64 --power-mode 0 --zram
    status_is 0
    [[ $(everything) == "$before" ]]
    for step in 'make the system user fedpfl' 'write the policy' 'unpack cpython-3.11' 'install the packages' 'install fedpfl' \
        'make a swap file of 64 MiB' 'enter it into /etc/fstab' 'turn nvzramconfig on' 'set power mode 0'; do
        says "would    $step"
    done
    says '"verdict": "check", "changed": true'
}

@test "a second run changes nothing" {
    options=(--user fedpfl --swap 1 --power-mode 0 --zram)
    install_fedpfl "${options[@]}"
    status_is 0
    : > "$BOARD/calls"
    before=$(everything | grep -v ' ./calls')
    install_fedpfl "${options[@]}"
    status_is 0
    says 'everything is there already'
    says '"changed": false'
    [[ $(calls) == 'runuser fedpfl HOME=/state' ]]  # the training step
    [[ $(everything | grep -v ' ./calls') == "$before" ]]
}

@test "the policy is written where there is none, and never overwritten" {
    policy=$BOARD/system/etc/fedpfl/policy.toml
    install_fedpfl --user fedpfl
    status_is 0
    says "write the policy $policy"
    cmp "$policy" "$REPOSITORY/jetson/policy.toml"
    [[ $(/usr/bin/stat -c %a "$policy") == 644 ]]
    echo 'methods = ["fedavg"]' > "$policy"
    install_fedpfl --user fedpfl
    status_is 0
    says 'everything is there already'
    [[ $(cat "$policy") == 'methods = ["fedavg"]' ]]
}

@test "without services the policy lies in the prefix, or where --policy says" {
    install_fedpfl
    status_is 0
    cmp "$PREFIX/policy.toml" "$REPOSITORY/jetson/policy.toml"
    install_fedpfl --policy "$BOARD/mine/policy.toml"
    status_is 0
    cmp "$BOARD/mine/policy.toml" "$REPOSITORY/jetson/policy.toml"
    install_fedpfl --policy policy.toml
    status_is 2
    says '--policy policy.toml: must be an absolute path'
}

@test "a new wheel renews fedpfl alone, a new lock everything" {
    install_fedpfl
    echo newer > "$BOARD/bundle/fedpfl-0.1.0-py3-none-any.whl"
    seal
    : > "$BOARD/calls"
    install_fedpfl
    status_is 0
    [[ $(calls | wc -l) == 1 ]]
    calls | grep -q 'pip install --no-deps'
    : > "$BOARD/calls"
    echo 'numpy==1' > "$BOARD/lock.txt"
    install_fedpfl --lock "$BOARD/lock.txt"
    status_is 0
    [[ $(calls | cut -d ' ' -f 1-3 | tr '\n' ,) == 'venv,pip install --require-hashes,pip install --no-deps,' ]]
}

@test "what stopped half-way is done again" {
    touch "$BOARD/pip-fails"
    install_fedpfl
    status_is 1
    says 'error: could not install the packages of requirements-nano.txt'
    says '"verdict": "failed"'
    rm "$BOARD/pip-fails"
    install_fedpfl
    status_is 0
    [[ $(calls | grep -c venv) == 2 ]]
}

refuses() {  # WORDS OPTION…: nothing changed
    local words=$1 before
    before=$(everything)
    install_fedpfl "${@:2}"
    status_is 1
    says "$words"
    says 'nothing was changed'
    [[ $(everything) == "$before" ]]
}

@test "refused: another machine, unless --any-machine" {
    rm "$BOARD/system/proc/device-tree/model"
    refuses 'neither Jetson Nano, Orin Nano nor Raspberry Pi'
    install_fedpfl --any-machine
    status_is 0
    says '"target": "any"'
}

@test "refused: another board than --target" {
    refuses 'NVIDIA Jetson Nano Developer Kit is not --target pi' --target pi
}

@test "refused: an older or unknown JetPack" {
    sed -i 's/7.1/5.1/' "$BOARD/system/etc/nv_tegra_release"
    refuses 'L4T: 32.5.1; a Nano needs JetPack 4.6'
    rm "$BOARD/system/etc/nv_tegra_release"
    refuses 'does not name a release'
}

@test "refused: 32-bit programs, another architecture, another C library" {
    BITS=32 refuses 'a 64-bit kernel with 32-bit programs'
    MACHINE=x86_64 refuses 'architecture: x86_64'
    MACHINE=x86_64 refuses 'requirements-nano.txt is for aarch64, so give --lock' --any-machine
    LIBC='glibc 2.12' refuses 'glibc 2.12; the packages need glibc 2.17'
}

@test "refused: too little memory or disk; little memory is a warning" {
    FREE=1000000 refuses 'needs 2500'
    echo 'MemTotal: 999424 kB' > "$BOARD/system/proc/meminfo"
    refuses 'memory: 976 MiB'
    echo 'MemTotal: 2027424 kB' > "$BOARD/system/proc/meminfo"
    install_fedpfl
    status_is 0
    says 'warning  memory: 1979 MiB'
}

@test "once installed, a full disk does not matter" {
    install_fedpfl
    FREE=1000 install_fedpfl
    status_is 0
}

@test "refused: a damaged bundle, one without Python, a folder that is none" {
    echo damaged > "$BOARD/bundle/fedpfl-0.1.0-py3-none-any.whl"
    refuses 'bundle: damaged: ./fedpfl-0.1.0-py3-none-any.whl: FAILED'
    rm "$BOARD"/bundle/cpython*
    seal
    refuses 'no archive of Python 3.11'
    install_fedpfl --python "$BOARD/bin/python3.11"
    status_is 0
    refuses 'no SHA256SUMS' --offline "$BOARD/system"
}

@test "refused: with --allowed-signers a bundle that nobody, or somebody else, has signed" {
    for name in mine other; do ssh-keygen -q -t ed25519 -N '' -C '' -f "$BOARD/$name"; done
    echo "me $(cat "$BOARD/mine.pub")" > "$BOARD/signers"
    refuses 'is not signed: it has no SHA256SUMS.sig' --allowed-signers "$BOARD/signers"
    ssh-keygen -q -Y sign -n fedpfl -f "$BOARD/other" "$BOARD/bundle/SHA256SUMS"
    refuses "is not signed by a key of $BOARD/signers" --allowed-signers "$BOARD/signers"
    rm "$BOARD/bundle/SHA256SUMS.sig"
    ssh-keygen -q -Y sign -n fedpfl -f "$BOARD/mine" "$BOARD/bundle/SHA256SUMS"
    install_fedpfl --allowed-signers "$BOARD/signers"
    status_is 0
    says '2 files, signed by me'
    echo damaged >> "$BOARD/bundle/fedpfl-0.1.0-py3-none-any.whl"
    seal
    refuses 'does not fit' --allowed-signers "$BOARD/signers"
}

@test "refused: --allowed-signers without a bundle" {
    run "$REPOSITORY/jetson/install.sh" --allowed-signers "$BOARD/signers"
    status_is 2
    says '--allowed-signers needs --offline'
}

@test "refused: what needs root without it, a folder of something else" {
    UID_HERE=1000 refuses 'rights: --user --swap must be run as root' --user fedpfl --swap 8
    mkdir "$STATE"
    OWNER=somebody refuses "state: $STATE belongs to somebody, not to fedpfl" --user fedpfl
    mkdir "$PREFIX"
    touch "$PREFIX/something"
    refuses 'holds something that this script did not install'
}

@test "refused: a clock that was never set" {
    command_ date 'case $1 in +%s) echo 1517000000 ;; *) echo 2018-01-26 ;; esac'
    refuses 'clock: 2018-01-26; set it'
}

time_server() {  # SECONDS: an NTP server, that much behind this machine, for one question
    python3 - "$1" "$BOARD/port" <<'PYTHON' &
import os, socket, struct, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 0))
    server.settimeout(20)
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(str(server.getsockname()[1]))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    question, client = server.recvfrom(100)
    assert len(question) == 48 and question[0] == 0x23 and not any(question[1:])
    now = int(time.time()) - int(sys.argv[1]) + 2208988800
    server.sendto(struct.pack("!BB38xII", 0x24, 10, now, 0), client)
PYTHON
    for _ in {1..100}; do [[ -e $BOARD/port ]] && break; sleep 0.1; done
    SERVER=127.0.0.1:$(cat "$BOARD/port")
    rm "$BOARD/port"
}

@test "the clock is compared with a time server" {
    time_server 0
    install_fedpfl --check --time-server "$SERVER"
    status_is 0
    says "clock: within 5 s of $SERVER"
    time_server 60
    install_fedpfl --check --time-server "$SERVER"
    status_is 1
    says 's ahead of'
    time_server -60
    install_fedpfl --check --time-server "$SERVER"
    status_is 0
    says 's behind'
    install_fedpfl --check --time-server "$SERVER"  # which has ended
    status_is 1
    says "no answer from the time server $SERVER"
}

@test "an Orin Nano and a Raspberry Pi are known" {
    printf 'NVIDIA Jetson Orin Nano Developer Kit\0' > "$BOARD/system/proc/device-tree/model"
    refuses 'L4T: 32.7.1; an Orin needs JetPack 6 (L4T 36) or 5 (L4T 35)'
    sed -i 's/R32/R35/' "$BOARD/system/etc/nv_tegra_release"
    install_fedpfl --check
    says 'warning  L4T: 35.7.1 (JetPack 5)'
    sed -i 's/R35/R36/; s/7.1/3.0/' "$BOARD/system/etc/nv_tegra_release"
    install_fedpfl --check
    status_is 0
    says '"target": "orin"'
    rm "$BOARD/system/etc/nv_tegra_release"
    printf 'Raspberry Pi 4 Model B Rev 1.4\0' > "$BOARD/system/proc/device-tree/model"
    install_fedpfl --check
    status_is 0
    says '"target": "pi"'
}

@test "a training step that fails is said in words" {
    echo 132 > "$BOARD/step-ends-with"
    install_fedpfl
    status_is 1
    says 'illegal instruction'
    echo 137 > "$BOARD/step-ends-with"
    install_fedpfl
    status_is 1
    says 'not enough memory'
}

@test "wrong usage ends with one line and exit code 2" {
    for words in '--nonsense' '--swap many' '--swap 08' '--swap' '--prefix here' '--target tx2' '--user Root!'; do
        # shellcheck disable=SC2086
        install_fedpfl $words
        status_is 2
        [[ $(grep -c '^error: ' <<< "$output") == 1 ]]
    done
    run "$REPOSITORY/jetson/install.sh" --help
    status_is 0
    says 'usage: install.sh'
}

@test "a last line of fstab without an end stays a line of its own" {
    printf '/dev/sda1 /srv/data ext4 defaults 0 2' >> "$BOARD/system/etc/fstab"
    for _ in 1 2; do
        install_fedpfl --swap 1
        status_is 0
        [[ $(sed -n 2,3p "$BOARD/system/etc/fstab") == $'/dev/sda1 /srv/data ext4 defaults 0 2\n'*'swapfile-fedpfl none swap sw 0 0' ]]
        [[ $(wc -l < "$BOARD/system/etc/fstab") == 3 ]]
    done
    uninstall_fedpfl
    [[ $(sed -n 2p "$BOARD/system/etc/fstab") == '/dev/sda1 /srv/data ext4 defaults 0 2' ]]
}

@test "swap that cannot be turned on leaves no file, and says what helps" {
    command_ swapon 'echo "swapon: Invalid argument" >&2; exit 255'
    install_fedpfl --swap 1
    status_is 1
    says 'cannot be turned on'
    [[ ! -e $BOARD/system/swapfile-fedpfl ]]
    ! grep -q swapfile "$BOARD/system/etc/fstab"
}

@test "a power mode that only begins with a restart is not taken for set" {
    command_ nvpmodel 'case $1 in -q) echo 1 ;; -m) echo "Reboot required" ;; esac'
    for _ in 1 2; do
        install_fedpfl --power-mode 0
        status_is 1
        says 'power mode: it is still 1; restart the board'
    done
}

@test "the desktop is off from the next start, and on again without fedpfl" {
    for _ in 1 2; do
        install_fedpfl --headless
        status_is 0
    done
    says 'everything is there already'
    uninstall_fedpfl
    [[ $(calls | grep set-default) == $'systemctl set-default multi-user.target\nsystemctl set-default graphical.target' ]]
}
