-- +goose Up

CREATE TABLE acme_accounts_new (
    id           TEXT   NOT NULL PRIMARY KEY,
    thumbprint   TEXT   NOT NULL,
    jwk          TEXT   NOT NULL,
    contacts     TEXT   NOT NULL,
    terms_agreed BIGINT NOT NULL,
    status       TEXT   NOT NULL CHECK (status IN ('valid', 'deactivated')),
    created_at   BIGINT NOT NULL,
    directory    TEXT   NOT NULL DEFAULT '',
    -- the key of the external account that it is bound to
    eab_kid      TEXT   NOT NULL DEFAULT ''
);
INSERT INTO acme_accounts_new (id, thumbprint, jwk, contacts, terms_agreed, status, created_at)
    SELECT id, thumbprint, jwk, contacts, terms_agreed, status, created_at FROM acme_accounts;
DROP TABLE acme_accounts;
ALTER TABLE acme_accounts_new RENAME TO acme_accounts;
-- One account for each key in each directory.
CREATE UNIQUE INDEX acme_accounts_key ON acme_accounts (thumbprint, directory);

-- Directories have accounts of their own; '' is the one that every server has.
ALTER TABLE acme_orders ADD COLUMN directory TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_authzs ADD COLUMN directory TEXT NOT NULL DEFAULT '';

-- set_hash is over what was asked for, so that the same wish finds the order
-- that is open for it. replaces is the serial of the certificate to be renewed.
ALTER TABLE acme_orders ADD COLUMN set_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_orders ADD COLUMN replaces TEXT NOT NULL DEFAULT '';
CREATE INDEX acme_orders_same ON acme_orders (account_id, set_hash) WHERE status IN ('pending', 'ready') AND set_hash <> '';
CREATE UNIQUE INDEX acme_orders_replaces ON acme_orders (replaces) WHERE replaces <> '' AND status <> 'invalid';

-- answer is what the client sent to say that it is ready, of challenges that are
-- proven by it; key_hash is of the SubjectPublicKeyInfo that was proven with it. caa_at is when CAA records last allowed a certificate.
ALTER TABLE acme_authzs ADD COLUMN profile TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_authzs ADD COLUMN answer BLOB;
ALTER TABLE acme_authzs ADD COLUMN key_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_authzs ADD COLUMN caa_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE acme_authzs ADD COLUMN subdomains BIGINT NOT NULL DEFAULT 0;
