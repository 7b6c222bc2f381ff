-- +goose Up

-- Validations of a name that failed in a row for an account. paused_at is not 0
-- once there were too many: no order of the account may need that name until
-- somebody says that it is mended. A proof since then counts as that: nothing is
-- written for it here. sweep_at is when the row means nothing any more.
CREATE TABLE acme_failures (
    account_id TEXT   NOT NULL,
    type       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    failures   BIGINT NOT NULL,
    last_at    BIGINT NOT NULL,
    paused_at  BIGINT NOT NULL DEFAULT 0,
    sweep_at   BIGINT NOT NULL,
    PRIMARY KEY (account_id, type, name)
);

-- Whether an account has any, asked at each of its new orders.
CREATE INDEX acme_failures_paused ON acme_failures (account_id) WHERE paused_at <> 0;
CREATE INDEX acme_failures_sweep ON acme_failures (sweep_at);

-- Keys that all replicas authenticate their own words with.
CREATE TABLE acme_secrets (
    name  TEXT NOT NULL PRIMARY KEY,
    value BYTEA NOT NULL
);
