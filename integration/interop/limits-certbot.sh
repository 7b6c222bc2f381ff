#!/usr/bin/env bash
# certbot at tight limits: it treats a refusal as final, says why, and succeeds
# when it is run again.
. "$(dirname "$0")/lib.sh"
. "$KIT_DIR/limits-common.sh"
CERTBOT=${CERTBOT:-certbot}
need_cmd "$CERTBOT" certbot
need_acme
need_port_free "$HTTP01_PORT"
D=$(kit_domain limits-certbot)
base=(--config-dir "$W/c" --work-dir "$W/w" --logs-dir "$W/l" --server "$ACME_DIRECTORY" --non-interactive)
http=(--standalone --preferred-challenges http --http-01-port "$HTTP01_PORT" --http-01-address "$BIND_ADDR")

issue() {
	rm -rf "$W/l" # what an earlier run said
	run "$2" "$CERTBOT" certonly "${base[@]}" "${http[@]}" --agree-tos -m "$ACME_EMAIL" --no-eff-email --key-type ecdsa --cert-name "$1" -d "$1"
}
check() { check_tls_cert "$W/c/live/$1/fullchain.pem" "$W/c/live/$1/privkey.pem" "$1"; }
limits_run issue check
[ "$LIMITS_REFUSED" -gt 0 ] || note "no refusal was left to its user"
pass "$LIMITS_RUNS certificates, $LIMITS_REFUSED refusals ($("$CERTBOT" --version 2>/dev/null))"
