#!/usr/bin/env bash
# uacme at tight limits: it waits in the middle of an order, treats a refused
# beginning as final, says why, and succeeds when it is run again.
. "$(dirname "$0")/lib.sh"
. "$KIT_DIR/limits-common.sh"
UACME=${UACME:-uacme}
HOOK=${UACME_HOOK:-/usr/share/uacme/uacme.sh}
need_cmd "$UACME" uacme
need_file "$HOOK" uacme
need_cmd python3 python3
need_system_trust
need_acme
D=$(kit_domain limits-uacme)
export UACME_CHALLENGE_PATH=$W/root/.well-known/acme-challenge
mkdir -p "$UACME_CHALLENGE_PATH"
ua=("${SYSTEM_TRUST[@]}" "$UACME" -v -y -c "$W/u" -a "$ACME_DIRECTORY")
serve_webroot "$W/root"

account() { run "$2" "${ua[@]}" new "$ACME_EMAIL"; }
issue() { run "$2" "${ua[@]}" -h "$HOOK" issue "$1"; }
check() { check_tls_cert "$W/u/$1/cert.pem" "$W/u/private/$1/key.pem" "$1"; }
step "account"
for ((try = 1; ; try++)); do
	account - "new-$try" && break
	limits_said "new-$try" && [ "$try" -lt "$LIMITS_TRIES" ] || fail "no account: $(kit_why "$W/new-$try.log")"
	sleep "$LIMITS_PAUSE"
done
limits_run issue check
[ "$LIMITS_REFUSED" -gt 0 ] || note "no refusal was left to its user"
pass "$LIMITS_RUNS certificates, $LIMITS_REFUSED refusals ($("$UACME" --version 2>&1 | sed -n '1s/.*version //p'))"
