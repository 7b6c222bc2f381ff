-- +goose Up

-- Work that one replica does for all, and until when it is that one's.
CREATE TABLE ocsp_leases (
    work        TEXT   NOT NULL PRIMARY KEY,
    holder      TEXT   NOT NULL,
    lease_until BIGINT NOT NULL
);

-- Signatures of OCSP responses made before anybody asks, by the hash of their
-- CertIDs (1 or 256). The response around one is put together anew from the
-- certificate's status: it verifies if that is what was signed. responder is the
-- serial of the certificate that goes along; status_seq numbers the status.
CREATE TABLE ocsp_ahead (
    serial      TEXT   NOT NULL,
    hash        BIGINT NOT NULL,
    responder   TEXT   NOT NULL,
    status_seq  BIGINT NOT NULL,
    produced_at BIGINT NOT NULL,
    this_update BIGINT NOT NULL,
    next_update BIGINT NOT NULL,
    refresh_at  BIGINT NOT NULL,
    signature   BYTEA  NOT NULL,
    PRIMARY KEY (serial, hash)
);

-- What is due.
CREATE INDEX ocsp_ahead_due ON ocsp_ahead (hash, refresh_at);

-- A change of status makes a signature due at once, also where an older program
-- was given its number by a trigger.
-- +goose StatementBegin
CREATE FUNCTION certificates_ocsp_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE ocsp_ahead SET refresh_at = 0 WHERE serial = NEW.serial;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER certificates_ocsp_due AFTER UPDATE ON certificates FOR EACH ROW
    WHEN (NEW.revocation_seq <> OLD.revocation_seq) EXECUTE FUNCTION certificates_ocsp_due();
