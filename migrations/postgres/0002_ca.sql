-- +goose Up

-- One row for every serial ever drawn, for ever: it is what says that a serial
-- was assigned. tbs is what was to be signed, kept until the certificate itself is there.
-- Serials and names are compared octet by octet, whatever the locale of the database.
CREATE TABLE certificates (
    serial      TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    id          TEXT   NOT NULL UNIQUE,
    issuer      TEXT   NOT NULL,
    profile     TEXT   NOT NULL,
    state       TEXT   NOT NULL CHECK (state IN ('pending', 'issued', 'abandoned', 'void')),
    tbs         BYTEA,
    der         BYTEA,
    spki_hash   TEXT   NOT NULL,
    names       TEXT   NOT NULL,
    requester   TEXT   NOT NULL,
    not_before  BIGINT NOT NULL,
    not_after   BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    revoked_at  BIGINT NOT NULL DEFAULT 0,
    reason      BIGINT NOT NULL DEFAULT 0
);

-- Recovery: the few that are being signed now.
CREATE INDEX certificates_pending ON certificates (lease_until) WHERE state = 'pending';
-- Listing by time.
CREATE INDEX certificates_created ON certificates (created_at, serial);
-- A CRL: the revoked ones of one issuer, in the order of their serials.
CREATE INDEX certificates_revoked ON certificates (issuer, serial) WHERE revoked_at <> 0;
-- Every certificate of one key, when the key is lost.
CREATE INDEX certificates_spki ON certificates (spki_hash);

-- Names with their labels in reverse, so that everything below a domain is one range.
CREATE TABLE certificate_names (
    name_reversed TEXT COLLATE "C" NOT NULL,
    serial        TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (name_reversed, serial)
);
CREATE INDEX certificate_names_serial ON certificate_names (serial);

-- Keys that are never certified again.
CREATE TABLE blocked_keys (
    spki_hash  TEXT   NOT NULL PRIMARY KEY,
    serial     TEXT   NOT NULL,
    blocked_at BIGINT NOT NULL,
    blocked_by TEXT   NOT NULL
);
