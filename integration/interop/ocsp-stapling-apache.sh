#!/usr/bin/env bash
# Apache mod_ssl SSLUseStapling, asked by openssl s_client -status and by curl
# --cert-status. Needs the good certificate's key: GOOD_KEY (or ACME_DIRECTORY, to
# have one issued).
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin:/sbin
APACHE=${APACHE:-apache2}
need_cmd "$APACHE" apache2
MODS=${APACHE_MODULES:-/usr/lib/apache2/modules}
[ -e "$MODS/mod_ssl.so" ] || skip "$MODS/mod_ssl.so is missing"
. "$KIT_DIR/status-common.sh"
need_ocsp
[ -n "${GOOD_KEY:-}" ] || skip "setting GOOD_KEY is not set"
P=$(free_port)
cat "$GOOD_PEM" "$ISSUER_PEM" >"$W/chain.pem"
cp "$GOOD_KEY" "$W/key.pem"
mkdir -p "$W/www" "$W/run"; echo interop >"$W/www/index.html"
user=""
if [ "$(id -u)" = 0 ]; then
	chmod 711 "$W"
	if getent passwd www-data >/dev/null; then user="User www-data"; else user="User nobody"; fi
	chown "${user#User }" "$W/run"
fi
{
	for m in mpm_event authz_core socache_shmcb ssl; do
		[ -e "$MODS/mod_$m.so" ] && echo "LoadModule ${m}_module $MODS/mod_$m.so"
	done
	cat <<C
ServerRoot $W
ServerName $BIND_ADDR
PidFile $W/httpd.pid
DefaultRuntimeDir $W/run
ErrorLog $W/error.log
LogLevel warn ssl:info
Listen $BIND_ADDR:$P
$user
SSLSessionCache none
SSLStaplingCache shmcb:$W/run/stapling(128000)
<VirtualHost $BIND_ADDR:$P>
	DocumentRoot $W/www
	SSLEngine on
	SSLCertificateFile $W/chain.pem
	SSLCertificateKeyFile $W/key.pem
	SSLUseStapling on
	SSLStaplingForceURL $OCSP_URL
	SSLStaplingReturnResponderErrors off
</VirtualHost>
<Directory $W/www>
	Require all granted
</Directory>
C
} >"$W/httpd.conf"
step "start Apache"
must conftest "$APACHE" -t -f "$W/httpd.conf"
bg apache "$APACHE" -DFOREGROUND -f "$W/httpd.conf"
wait_port "$P" "$BIND_ADDR"

step "staple, by openssl"
openssl s_client -connect "$BIND_ADDR:$P" -servername kit -status -CAfile "$ROOT_PEM" </dev/null >"$W/s.txt" 2>&1
grep -q 'OCSP Response Status: successful' "$W/s.txt" || fail "$KIT_STEP: none: $(grep -aiE 'ocsp|stapl' "$W/error.log" | tail -n 1)"
grep -q 'Cert Status: good' "$W/s.txt" || fail "$KIT_STEP: not good"
grep -q 'Verify return code: 0' "$W/s.txt" || fail "$KIT_STEP: chain: $(grep 'Verify return code' "$W/s.txt" | tail -n 1)"

step "staple, by curl --cert-status"
n=$(openssl x509 -in "$GOOD_PEM" -noout -ext subjectAltName | grep -o 'DNS:[^,]*' | head -n 1)
got=$(curl -sS --cert-status --cacert "$ROOT_PEM" --resolve "${n#DNS:}:$P:$BIND_ADDR" "https://${n#DNS:}:$P/index.html" 2>&1)
[ "$got" = interop ] || fail "$KIT_STEP: $got"
pass "stapled good, to openssl and curl ($("$APACHE" -v | sed -n 's/.*: //p' | head -n 1))"
