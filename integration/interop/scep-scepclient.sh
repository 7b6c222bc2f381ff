#!/usr/bin/env bash
# micromdm scepclient, which knows no other ciphers than single DES: it reads the
# CA's certificates and is told badAlg (RFC 8894 section 2.9: DES must not be supported).
. "$(dirname "$0")/lib.sh"
SCEPCLIENT=${SCEPCLIENT:-scepclient}
need_cmd "$SCEPCLIENT" "scep, or go: github.com/micromdm/scep/v2/cmd/scepclient"
. "$KIT_DIR/scep-common.sh"
step "CA certificates"
scep_cacerts
print=$(openssl x509 -in "$W/ca-0.pem" -outform DER | openssl dgst -sha256 -r | cut -d' ' -f1)
step "single DES must be refused as badAlg"
mkdir -p "$W/c"
run enrol "$SCEPCLIENT" -server-url "$SCEP_URL" -private-key "$W/c/client.key" -certificate "$W/c/client.pem" \
	-cn "$SCEP_CN" -organization kit -ou kit -country US -ca-fingerprint "$print" -challenge "$(challenge)" && fail "$KIT_STEP: was accepted"
[ -s "$W/c/client.pem" ] && grep -q 'BEGIN CERTIFICATE-----' "$W/c/client.pem" && fail "$KIT_STEP: a certificate came"
grep -Eq 'failInfo: (badAlg|0)' "$W/enrol.log" || { tail -n 15 "$W/enrol.log" >&2; fail "$KIT_STEP: $(kit_why "$W/enrol.log")"; }
pass "single DES refused as badAlg"
