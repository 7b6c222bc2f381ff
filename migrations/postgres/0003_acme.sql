-- +goose Up

CREATE TABLE acme_accounts (
    id           TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    thumbprint   TEXT   NOT NULL UNIQUE,
    jwk          TEXT   NOT NULL,
    contacts     TEXT   NOT NULL,
    terms_agreed BIGINT NOT NULL,
    status       TEXT   NOT NULL CHECK (status IN ('valid', 'deactivated')),
    created_at   BIGINT NOT NULL
);

-- authz_ids is a JSON list: a table between orders and authorizations would be
-- the largest of all, and is never asked from the other side. open_authzs counts
-- those that are not valid yet; the one that makes it 0 makes the order ready.
CREATE TABLE acme_orders (
    id             TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    account_id     TEXT   NOT NULL,
    status         TEXT   NOT NULL CHECK (status IN ('pending', 'ready', 'processing', 'valid', 'invalid')),
    profile        TEXT   NOT NULL,
    identifiers    TEXT   NOT NULL,
    authz_ids      TEXT   NOT NULL,
    open_authzs    BIGINT NOT NULL,
    not_before     BIGINT NOT NULL,
    not_after      BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    expires        BIGINT NOT NULL,
    error          TEXT   NOT NULL DEFAULT '',
    csr            BYTEA,
    csr_hash       TEXT   NOT NULL DEFAULT '',
    intent_id      TEXT   NOT NULL DEFAULT '',
    attempts       BIGINT NOT NULL DEFAULT 0,
    -- attempts that ended with their process; not among attempts
    deaths         BIGINT NOT NULL DEFAULT 0,
    due_at         BIGINT NOT NULL DEFAULT 0,
    certificate_id TEXT   NOT NULL DEFAULT '',
    serial         TEXT   NOT NULL DEFAULT '',
    sweep_at       BIGINT NOT NULL
);

-- The list of an account's orders.
CREATE INDEX acme_orders_account ON acme_orders (account_id, id);
-- How many an account has open.
CREATE INDEX acme_orders_open ON acme_orders (account_id) WHERE status IN ('pending', 'ready');
-- Recovery: the few that are being issued.
CREATE INDEX acme_orders_due ON acme_orders (due_at) WHERE status = 'processing';
-- What is to expire or to be deleted.
CREATE INDEX acme_orders_sweep ON acme_orders (sweep_at) WHERE status <> 'processing';

-- One row for an authorization with its challenges: they share one token, and
-- only the chosen one has a state. lease_until is not 0 while it is validated.
CREATE TABLE acme_authzs (
    id           TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    account_id   TEXT   NOT NULL,
    order_id     TEXT   NOT NULL,
    type         TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    wildcard     BIGINT NOT NULL,
    status       TEXT   NOT NULL CHECK (status IN ('pending', 'valid', 'invalid', 'deactivated')),
    token        TEXT   NOT NULL,
    offered      TEXT   NOT NULL,
    challenge    TEXT   NOT NULL DEFAULT '',
    lease_until  BIGINT NOT NULL DEFAULT 0,
    attempts     BIGINT NOT NULL DEFAULT 0,
    error        TEXT   NOT NULL DEFAULT '',
    created_at   BIGINT NOT NULL,
    expires      BIGINT NOT NULL,
    validated_at BIGINT NOT NULL DEFAULT 0,
    purge_at     BIGINT NOT NULL
);

-- Validations under way.
CREATE INDEX acme_authzs_lease ON acme_authzs (lease_until) WHERE lease_until <> 0;
-- Who controls a name.
CREATE INDEX acme_authzs_valid ON acme_authzs (account_id, name) WHERE status = 'valid';
CREATE INDEX acme_authzs_purge ON acme_authzs (purge_at);
