#!/usr/bin/env bash
# PKCS#11: SoftHSM2 and OpenSC's pkcs11-tool. In a token of the script's own: keys are
# made, sign, do not leave. With HSM_TOKEN_LABEL and HSM_PIN (and HSM_KEY_LABEL or
# HSM_KEY_ID, HSM_MODULE, SOFTHSM2_CONF) also: every private key of the server's token
# was made there and can't leave, and the issuing one is that of ISSUER_PEM.
. "$(dirname "$0")/lib.sh"
need_cmd pkcs11-tool opensc
need_cmd softhsm2-util softhsm2
need_cmd openssl openssl
soft=
for m in /usr/lib/softhsm/libsofthsm2.so /usr/lib/*/softhsm/libsofthsm2.so /usr/lib64/pkcs11/libsofthsm2.so; do
	[ -z "$soft" ] && [ -e "$m" ] && soft=$m
done
[ -n "$soft" ] || skip "libsofthsm2.so is not found (softhsm2)"

# all_stay LIST: each private key in a list of pkcs11-tool was made in its token and can't leave it
all_stay() {
	local keys stay
	keys=$(grep -c '^Private Key Object' "$1")
	stay=$(grep -c '^  Access: *sensitive, always sensitive, never extractable, local$' "$1")
	[ "$keys" -gt 0 ] || fail "$KIT_STEP: no private key in it"
	[ "$keys" = "$stay" ] || fail "$KIT_STEP: only $stay of $keys private keys are sensitive, always sensitive, never extractable and local"
	say "    $keys private keys, none of which can leave"
}

mkdir -p "$W/tokens"
printf 'directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n' "$W/tokens" >"$W/softhsm2.conf"
export KIT_PIN=1234
p11=(env SOFTHSM2_CONF="$W/softhsm2.conf" pkcs11-tool --module "$soft" --token-label kit --login --pin env:KIT_PIN)
step "init a token"
must init env SOFTHSM2_CONF="$W/softhsm2.conf" softhsm2-util --init-token --free --label kit --so-pin 5678 --pin 1234
step "make keys"
must rsa "${p11[@]}" --keypairgen --key-type rsa:2048 --id 01 --label rsa --usage-sign
must ec "${p11[@]}" --keypairgen --key-type EC:prime256v1 --id 02 --label ec --usage-sign
step "sign and verify"
echo interop >"$W/data"
must sig1 "${p11[@]}" --sign --mechanism SHA256-RSA-PKCS --id 01 --input-file "$W/data" --output-file "$W/sig.rsa"
must pub1 "${p11[@]}" --read-object --type pubkey --id 01 --output-file "$W/pub.rsa"
openssl pkey -pubin -inform DER -in "$W/pub.rsa" -out "$W/pub.rsa.pem" 2>/dev/null || fail "$KIT_STEP: no RSA public key"
openssl dgst -sha256 -verify "$W/pub.rsa.pem" -signature "$W/sig.rsa" "$W/data" >/dev/null || fail "$KIT_STEP: RSA"
openssl dgst -sha256 -binary "$W/data" >"$W/digest"
must sig2 "${p11[@]}" --sign --mechanism ECDSA --signature-format openssl --id 02 --input-file "$W/digest" --output-file "$W/sig.ec"
must pub2 "${p11[@]}" --read-object --type pubkey --id 02 --output-file "$W/pub.ec"
openssl pkey -pubin -inform DER -in "$W/pub.ec" -out "$W/pub.ec.pem" 2>/dev/null || fail "$KIT_STEP: no EC public key"
openssl dgst -sha256 -verify "$W/pub.ec.pem" -signature "$W/sig.ec" "$W/data" >/dev/null || fail "$KIT_STEP: EC"
step "the private key must not leave"
# (pkcs11-tool ends with status 0 all the same)
run leave "${p11[@]}" --read-object --type privkey --id 01 --output-file "$W/priv"
[ -s "$W/priv" ] && fail "$KIT_STEP: it did"
must list "${p11[@]}" --list-objects --type privkey
all_stay "$W/list.log"

if [ -n "${HSM_TOKEN_LABEL:-}" ] && [ -n "${HSM_PIN:-}" ]; then
	step "the server's token"
	export HSM_PIN
	srv=(pkcs11-tool --module "${HSM_MODULE:-$soft}" --token-label "$HSM_TOKEN_LABEL" --login --pin env:HSM_PIN)
	must srvlist "${srv[@]}" --list-objects --type privkey
	all_stay "$W/srvlist.log"
	# pkcs11-tool signs with the first key that it finds unless it is given an ID
	id=${HSM_KEY_ID:-}
	[ -n "$id" ] || id=$(awk -v l="${HSM_KEY_LABEL:-}" '$1 == "label:" { on = ($2 == l) } on && $1 == "ID:" { print $2; exit }' "$W/srvlist.log")
	[ -n "$id" ] || [ -z "${HSM_KEY_LABEL:-}" ] || fail "$KIT_STEP: no private key labelled $HSM_KEY_LABEL, or none with an ID"
	if [ -s "${ISSUER_PEM:-}" ] && [ -n "$id" ]; then
		step "the server's issuing key is the one in its token"
		# signing with it proves more than reading a public key beside it
		case $(openssl x509 -in "$ISSUER_PEM" -noout -text | grep -m1 'Public Key Algorithm') in
			*rsa*) must srvsig "${srv[@]}" --sign --mechanism SHA256-RSA-PKCS --id "$id" --input-file "$W/data" --output-file "$W/srv.sig" ;;
			*) must srvsig "${srv[@]}" --sign --mechanism ECDSA --signature-format openssl --id "$id" --input-file "$W/digest" --output-file "$W/srv.sig" ;;
		esac
		openssl x509 -in "$ISSUER_PEM" -noout -pubkey >"$W/srv.pub"
		openssl dgst -sha256 -verify "$W/srv.pub" -signature "$W/srv.sig" "$W/data" >/dev/null || fail "$KIT_STEP: it is another key"
	fi
	pass "own token, and the server's"
fi
pass "keys made, sign, stay inside (the server's token not looked at: HSM_TOKEN_LABEL is not set)"
