-- +goose Up

-- What an order asks for whose certificates are renewed by us (RFC 8739), in
-- JSON; '' for all others. Such an order, with its CSR, is kept until keep_until.
ALTER TABLE acme_orders ADD COLUMN auto_renewal TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_orders ADD COLUMN keep_until BIGINT NOT NULL DEFAULT 0;

-- Whether a certificate is one of such a row, which is not revoked by its account.
ALTER TABLE certificates ADD COLUMN auto_renewed BIGINT NOT NULL DEFAULT 0;

-- The rows of certificates that began. period is that of the newest certificate,
-- 0 for the first, and rises. due_at is when there is something to do, 0 for
-- never again; while somebody works on it, until when. intent_id is that of the
-- certificate being issued.
CREATE TABLE acme_stars (
    order_id       TEXT   NOT NULL PRIMARY KEY,
    account_id     TEXT   NOT NULL,
    directory      TEXT   NOT NULL,
    begin_at       BIGINT NOT NULL,
    period         BIGINT NOT NULL,
    certificate_id TEXT   NOT NULL,
    intent_id      TEXT   NOT NULL DEFAULT '',
    due_at         BIGINT NOT NULL,
    failures       BIGINT NOT NULL DEFAULT 0,
    canceled_at    BIGINT NOT NULL DEFAULT 0,
    purge_at       BIGINT NOT NULL
);
CREATE INDEX acme_stars_due ON acme_stars (directory, due_at) WHERE due_at <> 0;
CREATE INDEX acme_stars_account ON acme_stars (account_id) WHERE due_at <> 0;
CREATE INDEX acme_stars_purge ON acme_stars (purge_at);
