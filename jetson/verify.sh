#!/usr/bin/env bash
# Checks a bundle or release: who signed its SHA256SUMS, that its files have these sums, and that there are no others.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'HELP'
usage: verify.sh FOLDER ALLOWED_SIGNERS

Checks FOLDER, a bundle of `wheelhouse.sh --sign KEY` or the dist/ of `make dist SIGNING_KEY=KEY`. ALLOWED_SIGNERS has a
line for each key that may sign: a name, a space, and the content of KEY.pub. Take it from the signer, not from FOLDER.
Needs OpenSSH 8.2 or later (Ubuntu 18.04 has 7.6). Exit code 0: as it was signed; 1: not; 2: wrong usage.
HELP
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

if [[ ${1:-} == --help ]]; then usage; exit 0; fi
if (($# != 2)); then usage >&2; exit 2; fi
folder=$1 signers=$2
sums=$folder/SHA256SUMS

[[ -f $sums ]] || fail "$folder has no SHA256SUMS"
[[ -f $sums.sig ]] || fail "$folder is not signed: it has no SHA256SUMS.sig"
[[ -f $signers ]] || fail "$signers is not there"
command -v ssh-keygen > /dev/null || fail 'ssh-keygen is missing (apt-get install openssh-client)'

if ! found=$(ssh-keygen -Y find-principals -f "$signers" -s "$sums.sig" 2>&1); then
    [[ $found != *' option -- Y'* ]] || fail 'this ssh-keygen cannot check signatures; check the folder where OpenSSH is 8.2 or later'
    fail "$sums is not signed by a key of $signers"
fi
signer=${found%%$'\n'*}
ssh-keygen -q -Y verify -f "$signers" -I "$signer" -n fedpfl -s "$sums.sig" < "$sums" > /dev/null 2>&1 \
    || fail "$sums.sig does not fit to $sums, or is no signature for fedpfl"
wrong=$(cd "$folder" && sha256sum --check --strict --quiet SHA256SUMS 2>&1) || fail "damaged: $(head -n 1 <<< "$wrong")"
others=$(comm -13 <(cut -c 67- "$sums" | sed 's,^\./,,' | sort) \
    <(cd "$folder" && find . -not -type d -not -path './SHA256SUMS' -not -path './SHA256SUMS.sig' | sed 's,^\./,,' | sort))
[[ -z $others ]] || fail "not among the signed files: $(head -n 1 <<< "$others")"
echo "ok: $(wc -l < "$sums") files, signed by $signer"
