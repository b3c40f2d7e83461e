-- Groups of machines that a cloud places close to each other, and of containers that it makes and removes as one.
CREATE TABLE placement_groups (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    fleet_id TEXT NOT NULL REFERENCES fleets (id),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    status_message TEXT,
    configuration TEXT NOT NULL,
    instance_type TEXT NOT NULL,
    provisioning_data TEXT,
    deleted_at BIGINT,
    last_processed_at BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    lease_owner TEXT,
    version BIGINT NOT NULL
);
-- A fleet has one at a time.
CREATE UNIQUE INDEX uq_placement_groups_fleet ON placement_groups (fleet_id) WHERE status IN ('submitted', 'active');
CREATE INDEX ix_placement_groups_fleet ON placement_groups (fleet_id) WHERE status NOT IN ('failed', 'deleted');
CREATE INDEX ix_placement_groups_driven ON placement_groups (lease_owner) WHERE status NOT IN ('failed', 'deleted');

CREATE TABLE compute_groups (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    fleet_id TEXT NOT NULL REFERENCES fleets (id),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    members TEXT NOT NULL,
    provisioning_data TEXT,
    deleted_at BIGINT,
    last_processed_at BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    lease_owner TEXT,
    version BIGINT NOT NULL
);
CREATE INDEX ix_compute_groups_driven ON compute_groups (lease_owner) WHERE status NOT IN ('terminated');

ALTER TABLE instances ADD COLUMN placement_group_id TEXT;
ALTER TABLE instances ADD COLUMN compute_group_id TEXT;
