-- +goose Up

-- Certificates of delegated OCSP responders, one for each issuer and key.
CREATE TABLE ocsp_responders (
    issuer    TEXT   NOT NULL,
    spki_hash TEXT   NOT NULL,
    der       BLOB   NOT NULL,
    not_after BIGINT NOT NULL,
    PRIMARY KEY (issuer, spki_hash)
);

-- number is the last CRL number taken, whether or not its CRL came about;
-- published the last one that did, 0 for none. Whoever holds the lease builds.
-- scheduled_at is thisUpdate of the last CRL that was published because it was
-- due, not because of a revocation.
CREATE TABLE crl_heads (
    issuer       TEXT   NOT NULL PRIMARY KEY,
    number       BIGINT NOT NULL,
    lease_until  BIGINT NOT NULL,
    published    BIGINT NOT NULL DEFAULT 0,
    scheduled_at BIGINT NOT NULL DEFAULT 0
);

-- revocations and compromises are the counts of the moment before the CRL's
-- entries were read: as long as they stand, the CRL is complete.
CREATE TABLE crls (
    issuer      TEXT   NOT NULL,
    number      BIGINT NOT NULL,
    this_update BIGINT NOT NULL,
    next_update BIGINT NOT NULL,
    entries     BIGINT NOT NULL,
    revocations BIGINT NOT NULL,
    compromises BIGINT NOT NULL,
    der         BLOB   NOT NULL,
    PRIMARY KEY (issuer, number)
);

-- Counting the revoked of one issuer without reading their rows.
CREATE INDEX certificates_revoked_reason ON certificates (issuer, reason) WHERE revoked_at <> 0;
