-- +goose Up

-- Which nonces of an instance were out when it was stopped. The row is there
-- from a graceful stop to the next start, which deletes it as it takes it over.
CREATE TABLE acme_nonces (
    directory TEXT   NOT NULL,
    instance  TEXT   NOT NULL,
    saved_at  BIGINT NOT NULL,
    state     BYTEA  NOT NULL,
    PRIMARY KEY (directory, instance)
);
