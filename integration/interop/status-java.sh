#!/usr/bin/env bash
# Java's PKIX (sun.security): OCSP by GET and the CRL that the certificate names.
. "$(dirname "$0")/lib.sh"
need_cmd javac default-jdk-headless
. "$KIT_DIR/status-common.sh"
need_crl
must javac javac -d "$W" "$KIT_DIR/Status.java"
pkix() { timeout "$STEP_TIMEOUT" java -Xshare:auto -XX:TieredStopAtLevel=1 -Dcom.sun.security.enableCRLDP=true -cp "$W" Status "$1" "$2" "$ISSUER_PEM" "$ROOT_PEM" 2>&1 | tail -n 1; }
for by in ocsp crl; do
	step "$by"
	out=$(pkix $by "$GOOD_PEM"); [ "$out" = good ] || fail "$KIT_STEP: of the good one: $out"
	out=$(pkix $by "$REVOKED_PEM"); case $out in "revoked "*) ;; *) fail "$KIT_STEP: of the revoked one: $out" ;; esac
done
pass "OCSP and CRL, good and $out ($(java -version 2>&1 | sed -n '1s/ .*"\(.*\)".*/ \1/p'))"
