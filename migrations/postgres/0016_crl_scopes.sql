-- +goose Up

-- The part of its issuer's CRL that a certificate names, 0 for the complete
-- one. It is on the complete one, too.
ALTER TABLE certificates ADD COLUMN crl_shard BIGINT NOT NULL DEFAULT 0;
-- The CRL of a part: its revoked ones in the order of their serials.
CREATE INDEX certificates_revoked_shard ON certificates (issuer, crl_shard, serial) WHERE revoked_at <> 0 AND crl_shard <> 0;

-- The parts, each at one address for ever, since certificates are signed that
-- name it. needed_until is when the last certificate that names it has expired.
CREATE TABLE crl_shards (
    issuer       TEXT   NOT NULL,
    shard        BIGINT NOT NULL,
    url          TEXT   NOT NULL,
    needed_until BIGINT NOT NULL,
    PRIMARY KEY (issuer, shard),
    UNIQUE (url)
);

-- In crl_heads and crls, "issuer" is since now what the CRL is about: ISSUER for
-- all that it certified, ISSUER/7 for its part 7. A delta takes its number from
-- the same row as the complete CRLs of its scope. scheduled is the last complete
-- CRL that was published because it was due, which deltas are based on; delta the
-- last delta; 0 for none.
ALTER TABLE crl_heads ADD COLUMN scheduled BIGINT NOT NULL DEFAULT 0;
ALTER TABLE crl_heads ADD COLUMN delta BIGINT NOT NULL DEFAULT 0;

-- base is the number of the complete CRL that a delta is based on, 0 for a
-- complete one. seq is how many changes of status were sure to be seen: those
-- up to it are on the CRL, those after it may be.
ALTER TABLE crls ADD COLUMN base BIGINT NOT NULL DEFAULT 0;
ALTER TABLE crls ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;

-- The changes have their numbers in the order of revocations; that a reason
-- changed, too, which nobody listed yet, makes one of them unseen.
UPDATE crls SET seq = revocations - CASE WHEN revocations = 0 OR compromises = (
    SELECT COUNT(*) FROM certificates c WHERE c.issuer = crls.issuer AND c.revoked_at <> 0 AND c.reason = 1) THEN 0 ELSE 1 END;
UPDATE crl_heads SET scheduled = COALESCE((
    SELECT MAX(l.number) FROM crls l WHERE l.issuer = crl_heads.issuer AND l.this_update = crl_heads.scheduled_at), 0);
