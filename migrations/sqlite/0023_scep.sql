-- +goose Up

-- Certificates of SCEP registration authorities, one for each issuer and key.
CREATE TABLE scep_registrations (
    issuer    TEXT   NOT NULL,
    spki_hash TEXT   NOT NULL,
    der       BLOB   NOT NULL,
    not_after BIGINT NOT NULL,
    PRIMARY KEY (issuer, spki_hash)
);
