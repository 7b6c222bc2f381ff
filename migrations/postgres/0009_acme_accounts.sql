-- +goose Up

-- Keys that bind new accounts to accounts elsewhere (RFC 8555 §7.3.4). The key
-- itself must be here in clear: a MAC is verified with what made it. It is
-- emptied once it can bind nobody any more. scope is JSON, '' for no bounds.
CREATE TABLE acme_eab_keys (
    kid          TEXT   NOT NULL PRIMARY KEY,
    directory    TEXT   NOT NULL,
    mac_key      BYTEA  NOT NULL,
    comment      TEXT   NOT NULL,
    scope        TEXT   NOT NULL,
    created_by   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    -- 0: never
    expires      BIGINT NOT NULL,
    -- 0: as many as there are
    max_uses     BIGINT NOT NULL,
    uses         BIGINT NOT NULL DEFAULT 0,
    last_used_at BIGINT NOT NULL DEFAULT 0,
    revoked_at   BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX acme_eab_keys_list ON acme_eab_keys (created_at, kid);

-- eab_scope is the scope of the key that an account is bound by, as it was then.
-- An account that the operator revoked has status 'deactivated', by which older
-- programs keep it out, too, and says since when here.
ALTER TABLE acme_accounts ADD COLUMN eab_scope TEXT NOT NULL DEFAULT '';
ALTER TABLE acme_accounts ADD COLUMN revoked_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX acme_accounts_list ON acme_accounts (created_at, id);
CREATE INDEX acme_accounts_eab ON acme_accounts (eab_kid) WHERE eab_kid <> '';

-- Each directory works off its own.
DROP INDEX acme_orders_turns;
DROP INDEX acme_authzs_turns;
CREATE INDEX acme_orders_turns ON acme_orders (directory, account_id, renewal, due_at, id) WHERE status = 'processing';
CREATE INDEX acme_authzs_turns ON acme_authzs (directory, account_id, lease_until, id) WHERE lease_until <> 0;
