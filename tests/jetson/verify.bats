load helpers

# A signed folder, and the key that may sign.
setup() {
    setup_board
    folder=$BOARD/bundle
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$BOARD/key"
    echo "me@example.org $(cat "$BOARD/key.pub")" > "$BOARD/signers"
    sign fedpfl
}

sign() {  # NAMESPACE
    rm -f "$folder/SHA256SUMS.sig"
    ssh-keygen -q -Y sign -n "$1" -f "$BOARD/key" "$folder/SHA256SUMS"
}

verify() { run "$REPOSITORY/jetson/verify.sh" "$folder" "$BOARD/signers"; }

refuses() {  # WORDS
    verify
    status_is 1
    says "error: $1"
}

@test "a folder as it was signed" {
    verify
    status_is 0
    says 'ok: 2 files, signed by me@example.org'
}

@test "refused: without sums, signature or list of signers" {
    rm "$BOARD/signers"
    refuses "$BOARD/signers is not there"
    rm "$folder/SHA256SUMS.sig"
    refuses "$folder is not signed: it has no SHA256SUMS.sig"
    rm "$folder/SHA256SUMS"
    refuses "$folder has no SHA256SUMS"
}

@test "refused: another signer, another purpose, other sums" {
    sign file
    refuses "$folder/SHA256SUMS.sig does not fit"
    sign fedpfl
    echo more >> "$folder/fedpfl-0.1.0-py3-none-any.whl"
    seal
    refuses "$folder/SHA256SUMS.sig does not fit"
    sign fedpfl
    verify
    status_is 0
    echo "me@example.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" > "$BOARD/signers"
    refuses "$folder/SHA256SUMS is not signed by a key of $BOARD/signers"
}

@test "refused: a changed file, a missing file, one more file" {
    touch "$folder/wheels/more.whl"
    refuses 'not among the signed files: wheels/more.whl'
    rm "$folder/wheels/more.whl"
    ln -s /etc/passwd "$folder/link"
    refuses 'not among the signed files: link'
    rm "$folder/link"
    echo more >> "$folder/fedpfl-0.1.0-py3-none-any.whl"
    refuses 'damaged: ./fedpfl-0.1.0-py3-none-any.whl: FAILED'
    rm "$folder/fedpfl-0.1.0-py3-none-any.whl"
    refuses 'damaged: '
}

@test "an ssh-keygen that is too old is named" {
    command_ ssh-keygen 'echo "unknown option -- Y" >&2; exit 1'
    refuses 'this ssh-keygen cannot check signatures; check the folder where OpenSSH is 8.2 or later'
}

@test "wrong usage" {
    run "$REPOSITORY/jetson/verify.sh" "$folder"
    status_is 2
}

# A bundle is made by a pretended pip.
pack() {
    command_ python 'case "$*" in
        *urlopen*) echo "${*: -2:1}" > "$BOARD/asked"; cp "$BOARD"/bundle/cpython-* "${*: -1}" ;;
        *" wheel "*) echo "$*" > "$BOARD/built"; echo wheel > "${*: -2:1}/fedpfl-0.1.0-py3-none-any.whl" ;;
    esac'
    run "$REPOSITORY/jetson/wheelhouse.sh" "$BOARD/packed" --python "$BOARD/bin/python" "$@"
}

@test "wheelhouse.sh signs a bundle, and builds with the lock's packages alone" {
    pack --without-python --sign "$BOARD/key"
    status_is 0
    folder=$BOARD/packed
    verify
    status_is 0
    says 'signed by me@example.org'
    grep -q -- "--no-index --find-links $BOARD/packed.new/wheels" "$BOARD/built"
    pack --without-python
    status_is 0
    says 'note: not signed (--sign)'
    says 'note: without Python: devices need --python'
    refuses "$BOARD/packed is not signed"
}

@test "wheelhouse.sh takes an archive of Python by its sum, or if it is told not to ask" {
    archive=$(echo "$BOARD"/bundle/cpython-*)
    pack --python-archive "$archive"
    status_is 2
    says '--python-archive needs --python-sha256 SUM, which the release names, or --unverified-python'
    [[ ! -e $BOARD/packed ]]
    pack --python-archive "$archive" --python-sha256 "$(printf '0%.0s' {1..64})"
    status_is 1
    says "its SHA-256 is $(sha256sum < "$archive" | cut -d ' ' -f 1), not 000"
    pack --python-archive "$archive" --python-sha256 "$(sha256sum < "$archive" | cut -d ' ' -f 1)"
    status_is 0
    pack --python-archive "$archive" --unverified-python
    status_is 0
    [[ -f $BOARD/packed/${archive##*/} ]]
    pack --python-archive "$archive" --without-python
    status_is 2
}

@test "wheelhouse.sh downloads a Python of a fixed sum, and no other" {
    pack
    status_is 1
    says "its SHA-256 is $(sha256sum "$BOARD"/bundle/cpython-* | cut -d ' ' -f 1), not "
    grep -q '^https://.*/cpython-3\.11\.[0-9]*%2B.*-aarch64-unknown-linux-gnu-install_only_stripped\.tar\.gz$' "$BOARD/asked"
    [[ ! -e $BOARD/packed ]]
    sed "s/^python_sum=.*/python_sum=$(sha256sum "$BOARD"/bundle/cpython-* | cut -d ' ' -f 1)/" \
        "$REPOSITORY/jetson/wheelhouse.sh" > "$BOARD/wheelhouse.sh"
    cp "$REPOSITORY"/jetson/{install.sh,uninstall.sh,verify.sh,training_step.py,requirements-nano.txt,policy.toml} "$BOARD"
    run bash "$BOARD/wheelhouse.sh" "$BOARD/packed" --python "$BOARD/bin/python"
    status_is 0
    (cd "$BOARD/packed" && grep -q 'cpython-3\.11\..*aarch64' SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
    command_ python 'echo "urllib.error.URLError: <no network>" >&2; exit 1'
    run "$REPOSITORY/jetson/wheelhouse.sh" "$BOARD/other" --python "$BOARD/bin/python"
    status_is 1
    says 'cannot be downloaded (urllib.error.URLError: <no network>): get it elsewhere, and give --python-archive'
}
