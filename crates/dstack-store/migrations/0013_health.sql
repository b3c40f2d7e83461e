-- What the agents of instances said of their GPUs.
CREATE TABLE instance_health_checks (
    id TEXT PRIMARY KEY,
    instance_id TEXT NOT NULL REFERENCES instances (id) ON DELETE CASCADE,
    collected_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    response TEXT NOT NULL
);
CREATE INDEX ix_instance_health_checks_instance ON instance_health_checks (instance_id, collected_at);
CREATE INDEX ix_instance_health_checks_collected ON instance_health_checks (collected_at);
