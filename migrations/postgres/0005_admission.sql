-- +goose Up

-- What accounts have spent of their quotas: free_at is when one will owe
-- nothing any more. A row whose free_at has passed means the same as none.
CREATE TABLE quotas (
    kind    TEXT   NOT NULL,
    subject TEXT   NOT NULL,
    free_at BIGINT NOT NULL,
    PRIMARY KEY (kind, subject)
);

-- What may be swept.
CREATE INDEX quotas_free ON quotas (free_at);

-- How many authorization refusals a proven identity has behind it. No time is
-- kept: a clock that was wrong once must not hold anybody up.
CREATE TABLE refusal_budgets (
    identity TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    refusals BIGINT NOT NULL CHECK (refusals > 0)
);
