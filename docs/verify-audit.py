#!/usr/bin/env python3
"""Verify an audit chain without secsy-pki, as docs/audit.md describes it.

    secsy-pki audit list --limit 0 --json | verify-audit.py [SEQ:HASH ...]

Input: every entry from the first on, in order, one JSON object a line.
Arguments: heads that were noted earlier; the chain must hold each of them.
"""
import hashlib, json, sys

FIELDS = ("id", "at", "actor", "action", "object", "remote", "request", "detail")
seq, prev, noted = 0, "0" * 64, set(sys.argv[1:])
noted.discard(f"{seq}:{prev}")
for line in sys.stdin:
    e, seq = json.loads(line), seq + 1
    texts = [t.encode() for t in (prev, str(seq), *(e[f] for f in FIELDS))]
    netstrings = b"".join(b"%d:%s," % (len(t), t) for t in texts)
    prev = hashlib.sha256(b"secsy-pki audit entry v1\n" + netstrings).hexdigest()
    if (e["seq"], e["hash"]) != (seq, prev):
        sys.exit(f"broken at entry {seq}: got {e['seq']}:{e['hash']}, computed {seq}:{prev}")
    noted.discard(f"{seq}:{prev}")
if noted:
    sys.exit("the chain does not hold " + ", ".join(sorted(noted)))
print(f"whole: {seq}:{prev}")
