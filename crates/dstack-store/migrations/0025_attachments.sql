-- Which volumes are on their way to instances, there, or on their way back. Rows of those that are gone are deleted.
CREATE TABLE attachments (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    volume_id TEXT NOT NULL REFERENCES volumes (id),
    instance_id TEXT NOT NULL REFERENCES instances (id),
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    instance_name TEXT NOT NULL,
    volume TEXT NOT NULL,
    external BIGINT NOT NULL,
    handed_over BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    status_message TEXT,
    begun BIGINT NOT NULL,
    data TEXT,
    detaching_since BIGINT,
    forced_from BIGINT,
    last_processed_at BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    version BIGINT NOT NULL,
    lease_owner TEXT
);
CREATE INDEX ix_attachments_driven ON attachments (lease_owner) WHERE status NOT IN ('failed');
CREATE INDEX ix_attachments_project ON attachments (project_id);
CREATE INDEX ix_attachments_volume ON attachments (volume_id);
CREATE INDEX ix_attachments_instance ON attachments (instance_id);
CREATE INDEX ix_attachments_job ON attachments (job_id);
