-- Volumes and gateways are driven by the engine, and calls to the outside are made for whatever it drives.
ALTER TABLE volumes ADD COLUMN next_wake_at BIGINT;
ALTER TABLE volumes ADD COLUMN deadline_at BIGINT;
ALTER TABLE volumes ADD COLUMN waiting_for TEXT;
ALTER TABLE volumes ADD COLUMN lease_owner TEXT;
ALTER TABLE gateways ADD COLUMN next_wake_at BIGINT;
ALTER TABLE gateways ADD COLUMN deadline_at BIGINT;
ALTER TABLE gateways ADD COLUMN waiting_for TEXT;
ALTER TABLE gateways ADD COLUMN lease_owner TEXT;
CREATE INDEX ix_volumes_driven ON volumes (lease_owner) WHERE deleted = 0;

CREATE TABLE operations_of_entities (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    next_attempt_at BIGINT,
    error TEXT,
    notes TEXT,
    version BIGINT NOT NULL
);
INSERT INTO operations_of_entities
    (id, key, kind, subject, state, attempt, created_at, next_attempt_at, error, notes, version)
    SELECT id,
        CASE kind
            WHEN 'create-instance' THEN instance_id || ':create'
            WHEN 'terminate-instance' THEN instance_id || ':remove'
            ELSE key
        END,
        CASE kind WHEN 'create-instance' THEN 'create' WHEN 'terminate-instance' THEN 'remove' ELSE kind END,
        CASE WHEN job_id IS NULL THEN 'instance ' || instance_id ELSE 'job ' || job_id END,
        state, attempt, created_at, next_attempt_at, error, result, version
    FROM operations;
DROP TABLE operations;
ALTER TABLE operations_of_entities RENAME TO operations;
CREATE INDEX ix_operations_subject ON operations (subject);
