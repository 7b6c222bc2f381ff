-- +goose Up

-- The octets of CRLs, in pieces of 1 MiB, so that a long one is never a single
-- value. They are put here before the CRL is published; published says that one
-- is, and until then they are nobody's and may go an hour after put_at.
CREATE TABLE crl_bodies (
    id        TEXT   NOT NULL PRIMARY KEY,
    put_at    BIGINT NOT NULL,
    octets    BIGINT NOT NULL,
    published BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE crl_chunks (
    body   TEXT   NOT NULL REFERENCES crl_bodies (id) ON DELETE CASCADE,
    seq    BIGINT NOT NULL,
    octets BYTEA  NOT NULL,
    PRIMARY KEY (body, seq)
);
-- Serials are random: trying to compress them is in vain.
ALTER TABLE crl_chunks ALTER COLUMN octets SET STORAGE EXTERNAL;

ALTER TABLE crls ADD COLUMN body TEXT NOT NULL DEFAULT '';
ALTER TABLE crls ADD COLUMN octets BIGINT NOT NULL DEFAULT 0;
UPDATE crls SET body = issuer || '/' || number, octets = LENGTH(der);
INSERT INTO crl_bodies (id, put_at, octets, published) SELECT body, 0, octets, 1 FROM crls;
INSERT INTO crl_chunks (body, seq, octets)
    WITH RECURSIVE pieces (body, seq, octets) AS (
        SELECT body, 0::bigint, octets FROM crls WHERE octets > 0
        UNION ALL SELECT body, seq + 1, octets FROM pieces WHERE (seq + 1) * 1048576 < octets)
    SELECT p.body, p.seq, SUBSTR(l.der, (p.seq * 1048576 + 1)::int, 1048576) FROM pieces p JOIN crls l ON l.body = p.body;
-- A program of an older version finds no der and goes on serving what it has,
-- where an empty one would have been served.
ALTER TABLE crls DROP COLUMN der;
