-- +goose Up

-- A hash of the set of names, so that an account's certificate for the very
-- same names is found in one step, long after its order is gone. It is empty
-- for certificates that are older than this column: nobody renews those first.
ALTER TABLE certificates ADD COLUMN names_hash TEXT NOT NULL DEFAULT '';
CREATE INDEX certificates_held ON certificates (requester, names_hash, not_after)
    WHERE state = 'issued' AND revoked_at = 0 AND names_hash <> '';

-- Whether an order that is processing renews a certificate.
ALTER TABLE acme_orders ADD COLUMN renewal BIGINT NOT NULL DEFAULT 0;

-- What is being issued and validated, account by account, so that each is given
-- its turn without reading the rows of all.
CREATE INDEX acme_orders_turns ON acme_orders (account_id, renewal, due_at, id) WHERE status = 'processing';
CREATE INDEX acme_authzs_turns ON acme_authzs (account_id, lease_until, id) WHERE lease_until <> 0;
