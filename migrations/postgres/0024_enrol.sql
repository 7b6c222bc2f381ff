-- +goose Up

-- Secrets that all replicas have, made by the first.
CREATE TABLE enrol_keys (
    name   TEXT  NOT NULL PRIMARY KEY,
    secret BYTEA NOT NULL
);

-- Who enrols devices by name and password, which is hashed.
CREATE TABLE enrol_users (
    name        TEXT   NOT NULL PRIMARY KEY,
    password    TEXT   NOT NULL,
    endpoints   TEXT   NOT NULL,
    comment     TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    created_by  TEXT   NOT NULL,
    disabled_at BIGINT NOT NULL DEFAULT 0
);

-- Secrets that may be used in place of a name. Only their digest is kept, under
-- the key "challenge".
CREATE TABLE enrol_challenges (
    id         TEXT   NOT NULL PRIMARY KEY,
    digest     TEXT   NOT NULL UNIQUE,
    endpoint   TEXT   NOT NULL,
    subject    TEXT   NOT NULL,
    names      TEXT   NOT NULL,
    comment    TEXT   NOT NULL,
    max_uses   BIGINT NOT NULL,
    uses       BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    created_by TEXT   NOT NULL,
    expires    BIGINT NOT NULL,
    revoked_at BIGINT NOT NULL DEFAULT 0
);

-- Requests. decided_at says that an operator approved one, which stays so when an
-- attempt to issue it fails; another is deleted then. lease_until is that of an
-- attempt, intent_id its certificate's.
CREATE TABLE enrol_requests (
    id             TEXT   NOT NULL PRIMARY KEY,
    request_key    TEXT   NOT NULL UNIQUE,
    endpoint       TEXT   NOT NULL,
    profile        TEXT   NOT NULL,
    principal      TEXT   NOT NULL,
    transaction_id TEXT   NOT NULL,
    csr            BYTEA  NOT NULL,
    spki_hash      TEXT   NOT NULL,
    names          TEXT   NOT NULL,
    renewal        BIGINT NOT NULL,
    challenge_id   TEXT   NOT NULL,
    state          TEXT   NOT NULL,
    intent_id      TEXT   NOT NULL DEFAULT '',
    serial         TEXT   NOT NULL DEFAULT '',
    created_at     BIGINT NOT NULL,
    lease_until    BIGINT NOT NULL DEFAULT 0,
    decided_at     BIGINT NOT NULL DEFAULT 0,
    decided_by     TEXT   NOT NULL DEFAULT '',
    purge_at       BIGINT NOT NULL
);
CREATE INDEX enrol_requests_transaction ON enrol_requests (endpoint, transaction_id, spki_hash) WHERE transaction_id <> '';
CREATE INDEX enrol_requests_waiting ON enrol_requests (endpoint) WHERE state = 'waiting';
CREATE INDEX enrol_requests_processing ON enrol_requests (lease_until) WHERE state = 'processing';
CREATE INDEX enrol_requests_created ON enrol_requests (created_at, id);
CREATE INDEX enrol_requests_purge ON enrol_requests (purge_at);
