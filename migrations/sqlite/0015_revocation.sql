-- +goose Up

-- Every change of a certificate's status takes the next number of its issuer,
-- and this row stays locked until it is committed: the order of the numbers is
-- the order of the commits, and who reads one number sees all below it.
CREATE TABLE revocation_heads (
    issuer TEXT   NOT NULL PRIMARY KEY,
    seq    BIGINT NOT NULL
);

-- The number of the last change of status, 0 for a certificate that never had
-- one. A hold that was released keeps the number of its release, with revoked_at 0.
ALTER TABLE certificates ADD COLUMN revocation_seq BIGINT NOT NULL DEFAULT 0;
-- Since when the key is known or feared to be lost (RFC 5280 §5.3.2).
ALTER TABLE certificates ADD COLUMN invalidity_at BIGINT NOT NULL DEFAULT 0;

UPDATE certificates SET revocation_seq = r.seq
FROM (SELECT serial, ROW_NUMBER() OVER (PARTITION BY issuer ORDER BY revoked_at, serial) AS seq
      FROM certificates WHERE revoked_at <> 0) r
WHERE certificates.serial = r.serial;
INSERT INTO revocation_heads (issuer, seq)
    SELECT issuer, COUNT(*) FROM certificates WHERE revoked_at <> 0 GROUP BY issuer;

CREATE INDEX certificates_changed ON certificates (issuer, revocation_seq) WHERE revocation_seq > 0;

-- A program of an older version takes no number: it is given one.
-- +goose StatementBegin
CREATE TRIGGER certificates_take_seq AFTER UPDATE OF revoked_at, reason ON certificates FOR EACH ROW
WHEN NEW.revocation_seq = OLD.revocation_seq AND (NEW.revoked_at <> OLD.revoked_at OR NEW.reason <> OLD.reason)
BEGIN
    INSERT INTO revocation_heads (issuer, seq) VALUES (NEW.issuer, 1)
        ON CONFLICT (issuer) DO UPDATE SET seq = revocation_heads.seq + 1;
    UPDATE certificates SET revocation_seq = (SELECT h.seq FROM revocation_heads h WHERE h.issuer = NEW.issuer)
        WHERE serial = NEW.serial;
END;
-- +goose StatementEnd
