#!/usr/bin/env bash
# NSS, as Firefox and Thunderbird check certificates: vfychain by OCSP (GET, then
# POST), and by the CRL, which crlutil imports.
. "$(dirname "$0")/lib.sh"
need_cmd vfychain libnss3-tools
need_cmd certutil libnss3-tools
need_cmd crlutil libnss3-tools
. "$KIT_DIR/status-common.sh"
need_crl
D=sql:$W/nssdb
mkdir "$W/nssdb"
must newdb certutil -N -d "$D" --empty-password
must root certutil -A -d "$D" -n root -t C,, -a -i "$ROOT_PEM"
must issuer certutil -A -d "$D" -n issuer -t ,, -a -i "$ISSUER_PEM"

# libpkix, usage 1 (server); the revocation of the leaf must be known by the method
vfy() { timeout "$STEP_TIMEOUT" vfychain -d "$D" -pp -u 1 -g leaf -m "$1" -s failIfNoInfo -a "$2" -a "$ISSUER_PEM" 2>&1; }
both() {
	local out
	step "$1: good"
	out=$(vfy "$1" "$GOOD_PEM"); case $out in *'Chain is good!'*) ;; *) fail "$KIT_STEP: $(tail -n 2 <<<"$out" | tr '\n' ' ')" ;; esac
	step "$1: revoked"
	out=$(vfy "$1" "$REVOKED_PEM"); case $out in *'has been revoked'*) ;; *) fail "$KIT_STEP: $(tail -n 2 <<<"$out" | tr '\n' ' ')" ;; esac
}
both ocsp
step "import the CRL"
must crl crlutil -I -d "$D" -i "$W/crl.der" -B
crlutil -L -d "$D" 2>&1 | grep -q issuer || fail "$KIT_STEP: $(crlutil -L -d "$D" 2>&1 | tail -n 1)"
both crl
pass "OCSP and CRL, good and revoked ($(dpkg-query -W -f '${Version}' libnss3-tools 2>/dev/null || echo NSS))"
