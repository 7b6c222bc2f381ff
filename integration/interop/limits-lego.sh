#!/usr/bin/env bash
# lego at tight limits: what it doesn't wait out itself it reports, and it
# succeeds when it is run again.
. "$(dirname "$0")/lib.sh"
USE_EAB=
. "$KIT_DIR/lego-common.sh"
. "$KIT_DIR/limits-common.sh"
need_acme
need_port_free "$HTTP01_PORT"
D=$(kit_domain limits-lego)

issue() { run "$2" "${lego_base[@]}" --http --http.port "$BIND_ADDR:$HTTP01_PORT" --domains "$1" --key-type ec256 run; }
check() { local f; f=$(lego_file "$1"); check_tls_cert "$f.crt" "$f.key" "$1"; }
limits_run issue check
[ "$LIMITS_REFUSED" -gt 0 ] || note "no refusal was left to its user"
pass "$LIMITS_RUNS certificates, $LIMITS_REFUSED refusals"
