-- Replicas of gateways are driven by the engine, and services are published at gateways.
ALTER TABLE gateway_replicas ADD COLUMN project_id TEXT NOT NULL DEFAULT '';
ALTER TABLE gateway_replicas ADD COLUMN name TEXT NOT NULL DEFAULT '';
-- The host of an SSH fleet that it runs on; NULL: it has a machine of its own.
ALTER TABLE gateway_replicas ADD COLUMN instance_id TEXT;
ALTER TABLE gateway_replicas ADD COLUMN build TEXT;
ALTER TABLE gateway_replicas ADD COLUMN next_wake_at BIGINT;
ALTER TABLE gateway_replicas ADD COLUMN deadline_at BIGINT;
ALTER TABLE gateway_replicas ADD COLUMN waiting_for TEXT;
ALTER TABLE gateway_replicas ADD COLUMN lease_owner TEXT;
CREATE INDEX ix_gateway_replicas_driven ON gateway_replicas (lease_owner) WHERE status NOT IN ('terminated');
CREATE INDEX ix_gateway_replicas_instance ON gateway_replicas (instance_id) WHERE status NOT IN ('terminated');

-- NULL: requests go through the server.
ALTER TABLE runs ADD COLUMN gateway_id TEXT;
CREATE INDEX ix_runs_gateway ON runs (gateway_id) WHERE status NOT IN ('terminated', 'failed', 'done');
