#!/usr/bin/env bash
# acme-certbot.sh with external account binding.
export KIT_NAME=acme-certbot-eab
here=$(cd "$(dirname "$0")" && pwd)
for v in ACME_EAB_DIRECTORY EAB_KID EAB_HMAC; do
	[ -n "${!v:-}" ] || { echo "SKIP $KIT_NAME: setting $v is not set"; exit 77; }
done
export ACME_DIRECTORY=$ACME_EAB_DIRECTORY ROOT_PEM=${ACME_EAB_ROOT_PEM:-${ROOT_PEM:-}} USE_EAB=1
exec "$here/acme-certbot.sh"
