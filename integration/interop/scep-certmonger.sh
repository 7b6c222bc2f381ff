#!/usr/bin/env bash
# certmonger's scep-submit: capabilities and CA certificates, as its daemon asks for them.
. "$(dirname "$0")/lib.sh"
SCEP_SUBMIT=${SCEP_SUBMIT:-/usr/lib/certmonger/scep-submit}
need_cmd "$SCEP_SUBMIT" certmonger
. "$KIT_DIR/scep-common.sh"
step "CA certificates with curl"
scep_cacerts
step "capabilities"
must caps "$SCEP_SUBMIT" -u "$SCEP_URL" -c
for c in POSTPKIOperation Renewal SHA-256 AES; do
	grep -qx -- "$c" "$W/caps.log" || fail "$KIT_STEP: no $c: $(tr '\n' ' ' <"$W/caps.log")"
done
step "CA certificates"
must cas "$SCEP_SUBMIT" -u "$SCEP_URL" -C
for f in "$W"/ca-[0-9]*.pem; do
	grep -qF -- "$(sed -n 2p "$f")" "$W/cas.log" || fail "$KIT_STEP: $(openssl x509 -in "$f" -noout -subject) is not there"
done
pass "capabilities and CA certificates read"
