-- +goose Up

-- The certificate that was ordered to take this one's place (RFC 9773 §5). The
-- order that says so is deleted some day; this is not.
ALTER TABLE certificates ADD COLUMN replaced_by TEXT NOT NULL DEFAULT '';

-- Since this migration acme_orders.replaces is the whole CertID of RFC 9773
-- §4.1, of which there is one for each serial, and not the serial alone.

-- What must be replaced sooner than it says itself. '' and 0 are no condition.
-- listed says that only serials of acme_incident_serials are meant.
CREATE TABLE acme_incidents (
    name          TEXT   NOT NULL PRIMARY KEY,
    note          TEXT   NOT NULL,
    listed        BIGINT NOT NULL,
    issuer        TEXT   NOT NULL,
    profile       TEXT   NOT NULL,
    spki_hash     TEXT   NOT NULL,
    requester     TEXT   NOT NULL,
    issued_after  BIGINT NOT NULL,
    issued_before BIGINT NOT NULL,
    window_start  BIGINT NOT NULL,
    window_end    BIGINT NOT NULL,
    url           TEXT   NOT NULL,
    created_at    BIGINT NOT NULL,
    created_by    TEXT   NOT NULL,
    ended_at      BIGINT NOT NULL DEFAULT 0,
    -- how many serials it lists
    serials       BIGINT NOT NULL DEFAULT 0
);
-- The few that are open.
CREATE INDEX acme_incidents_open ON acme_incidents (created_at) WHERE ended_at = 0;

CREATE TABLE acme_incident_serials (
    serial   TEXT NOT NULL,
    incident TEXT NOT NULL,
    PRIMARY KEY (serial, incident)
);
CREATE INDEX acme_incident_serials_of ON acme_incident_serials (incident, serial);
