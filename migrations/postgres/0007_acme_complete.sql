-- +goose Up

ALTER TABLE acme_accounts ADD COLUMN directory TEXT NOT NULL DEFAULT '';
-- The key of the external account that it is bound to.
ALTER TABLE acme_accounts ADD COLUMN eab_kid TEXT NOT NULL DEFAULT '';
-- One account for each key in each directory.
ALTER TABLE acme_accounts DROP CONSTRAINT acme_accounts_thumbprint_key;
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
ALTER TABLE acme_authzs ADD COLUMN answer BYTEA;
ALTER TABLE acme_authzs ADD COLUMN key_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_authzs ADD COLUMN caa_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE acme_authzs ADD COLUMN subdomains BIGINT NOT NULL DEFAULT 0;
