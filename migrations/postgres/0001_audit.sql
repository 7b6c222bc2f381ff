-- +goose Up

-- An entry is inserted by the transaction that makes its fact true, with seq
-- and hash NULL; the sequencer sets both, once. Every index but the primary key
-- is partial, so that the insert pays for one of them only.
CREATE TABLE audit_entries (
    id      TEXT   NOT NULL PRIMARY KEY,
    at      BIGINT NOT NULL,
    actor   TEXT   NOT NULL,
    action  TEXT   NOT NULL,
    object  TEXT   NOT NULL,
    remote  TEXT   NOT NULL,
    request TEXT   NOT NULL,
    detail  TEXT   NOT NULL,
    seq     BIGINT,
    hash    TEXT,
    CHECK ((seq IS NULL) = (hash IS NULL))
);

CREATE INDEX audit_entries_pending ON audit_entries (at, id) WHERE seq IS NULL;
CREATE UNIQUE INDEX audit_entries_seq ON audit_entries (seq) WHERE seq IS NOT NULL;
CREATE INDEX audit_entries_action ON audit_entries (action, seq) WHERE seq IS NOT NULL;
CREATE INDEX audit_entries_object ON audit_entries (object, seq) WHERE seq IS NOT NULL;

-- The end of the chain. Its one row is moved by compare-and-swap.
CREATE TABLE audit_head (
    id   BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    seq  BIGINT NOT NULL,
    hash TEXT   NOT NULL
);

INSERT INTO audit_head (id, seq, hash)
VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');

-- The triggers are a guard against accidents; the chain is what finds intent.

-- +goose StatementBegin
CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END;
$$;
-- +goose StatementEnd

CREATE TRIGGER audit_entries_fixed BEFORE UPDATE ON audit_entries FOR EACH ROW
WHEN (OLD.seq IS NOT NULL OR NEW.seq IS NULL
    OR NEW.id <> OLD.id OR NEW.at <> OLD.at OR NEW.actor <> OLD.actor OR NEW.action <> OLD.action
    OR NEW.object <> OLD.object OR NEW.remote <> OLD.remote OR NEW.request <> OLD.request OR NEW.detail <> OLD.detail)
EXECUTE FUNCTION audit_refuse('audit entries do not change');

CREATE TRIGGER audit_entries_kept BEFORE DELETE ON audit_entries FOR EACH ROW
EXECUTE FUNCTION audit_refuse('audit entries are not deleted');

CREATE TRIGGER audit_entries_whole BEFORE TRUNCATE ON audit_entries FOR EACH STATEMENT
EXECUTE FUNCTION audit_refuse('audit entries are not deleted');

CREATE TRIGGER audit_head_forward BEFORE UPDATE ON audit_head FOR EACH ROW
WHEN (NEW.id <> OLD.id OR NEW.seq <= OLD.seq)
EXECUTE FUNCTION audit_refuse('the audit head only moves forward');

CREATE TRIGGER audit_head_kept BEFORE DELETE ON audit_head FOR EACH ROW
EXECUTE FUNCTION audit_refuse('the audit head is not deleted');

CREATE TRIGGER audit_head_whole BEFORE TRUNCATE ON audit_head FOR EACH STATEMENT
EXECUTE FUNCTION audit_refuse('the audit head is not deleted');
