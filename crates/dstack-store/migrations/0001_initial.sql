-- Ids, enums and JSON are TEXT, times are microseconds in BIGINT, flags are BIGINT 0/1, so that one text serves both databases.
-- Tables of the engine end with the same control columns:
--   version        changes with every update; an update of an older version is refused
--   next_wake_at   when the engine looks at the row again by itself; NULL = only when woken
--   deadline_at    when the present wait ends badly; NULL = terminal, or no wait
--   waiting_for    what it waits for, in words for `ps -v`
--   lease_owner, lease_expires_at   which server process drives the row

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    global_role TEXT NOT NULL,
    email TEXT,
    active BIGINT NOT NULL,
    token TEXT NOT NULL,
    token_hash TEXT NOT NULL UNIQUE,
    ssh_private_key TEXT,
    ssh_public_key TEXT,
    projects_quota BIGINT NOT NULL,
    deleted BIGINT NOT NULL DEFAULT 0,
    original_name TEXT
);
CREATE UNIQUE INDEX uq_users_lower_name ON users (LOWER(name));
CREATE INDEX ix_users_email ON users (email);

CREATE TABLE user_public_keys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    key TEXT NOT NULL,
    UNIQUE (user_id, fingerprint)
);

CREATE TABLE projects (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    owner_id TEXT NOT NULL REFERENCES users (id),
    is_public BIGINT NOT NULL,
    templates_repo TEXT,
    ssh_private_key TEXT,
    ssh_public_key TEXT,
    default_gateway_id TEXT,
    deleted BIGINT NOT NULL DEFAULT 0,
    original_name TEXT
);
CREATE UNIQUE INDEX uq_projects_lower_name ON projects (LOWER(name));

CREATE TABLE members (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    project_role TEXT NOT NULL,
    member_num BIGINT NOT NULL,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX ix_members_user ON members (user_id);

CREATE TABLE backends (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    type TEXT NOT NULL,
    config TEXT NOT NULL,
    auth TEXT NOT NULL,
    source_config TEXT,
    source_auth TEXT,
    UNIQUE (project_id, type)
);

CREATE TABLE secrets (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE repos (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    info TEXT NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE repo_creds (
    repo_id TEXT NOT NULL REFERENCES repos (id) ON DELETE CASCADE,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    creds TEXT NOT NULL,
    PRIMARY KEY (repo_id, user_id)
);

CREATE TABLE codes (
    repo_id TEXT NOT NULL REFERENCES repos (id) ON DELETE CASCADE,
    blob_hash TEXT NOT NULL,
    content BLOB,
    PRIMARY KEY (repo_id, blob_hash)
);

CREATE TABLE file_archives (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    blob_hash TEXT NOT NULL,
    content BLOB,
    UNIQUE (user_id, blob_hash)
);

CREATE TABLE fleets (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    status_message TEXT,
    spec TEXT NOT NULL,
    local BIGINT NOT NULL DEFAULT 0,
    deleted BIGINT NOT NULL DEFAULT 0,
    deleted_at BIGINT,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    lease_owner TEXT,
    lease_expires_at BIGINT
);
CREATE UNIQUE INDEX uq_fleets_name ON fleets (project_id, name) WHERE deleted = 0;
CREATE INDEX ix_fleets_created ON fleets (created_at DESC, id);

CREATE TABLE instances (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    fleet_id TEXT REFERENCES fleets (id),
    name TEXT NOT NULL,
    instance_num BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    status TEXT NOT NULL,
    unreachable BIGINT NOT NULL DEFAULT 0,
    health TEXT NOT NULL,
    termination_reason TEXT,
    termination_reason_message TEXT,
    backend TEXT,
    region TEXT,
    price DOUBLE PRECISION,
    offer TEXT,
    job_provisioning_data TEXT,
    agent TEXT,
    total_blocks BIGINT,
    busy_blocks BIGINT NOT NULL DEFAULT 0,
    last_job_processed_at BIGINT,
    deleted BIGINT NOT NULL DEFAULT 0,
    deleted_at BIGINT,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    lease_owner TEXT,
    lease_expires_at BIGINT
);
CREATE INDEX ix_instances_fleet ON instances (fleet_id);
CREATE INDEX ix_instances_project ON instances (project_id, created_at DESC);

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    repo_id TEXT REFERENCES repos (id),
    fleet_id TEXT,
    run_name TEXT NOT NULL,
    submitted_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    termination_reason TEXT,
    resubmission_attempt BIGINT NOT NULL DEFAULT 0,
    run_spec TEXT NOT NULL,
    service_spec TEXT,
    priority BIGINT NOT NULL DEFAULT 0,
    deployment_num BIGINT NOT NULL DEFAULT 0,
    desired_replica_count BIGINT NOT NULL DEFAULT 1,
    next_triggered_at BIGINT,
    deleted BIGINT NOT NULL DEFAULT 0,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    lease_owner TEXT,
    lease_expires_at BIGINT
);
CREATE UNIQUE INDEX uq_runs_name ON runs (project_id, run_name) WHERE deleted = 0;
CREATE INDEX ix_runs_submitted ON runs (submitted_at DESC, id);
CREATE INDEX ix_runs_project_submitted ON runs (project_id, submitted_at DESC, id);
CREATE INDEX ix_runs_active ON runs (status) WHERE status NOT IN ('terminated', 'failed', 'done');

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    run_name TEXT NOT NULL,
    job_num BIGINT NOT NULL,
    replica_num BIGINT NOT NULL,
    submission_num BIGINT NOT NULL,
    job_name TEXT NOT NULL,
    deployment_num BIGINT NOT NULL DEFAULT 0,
    submitted_at BIGINT NOT NULL,
    running_at BIGINT,
    finished_at BIGINT,
    status TEXT NOT NULL,
    termination_reason TEXT,
    termination_reason_message TEXT,
    exit_status BIGINT,
    job_spec TEXT NOT NULL,
    job_provisioning_data TEXT,
    job_runtime_data TEXT,
    fleet_id TEXT,
    instance_id TEXT REFERENCES instances (id),
    used_instance_id TEXT,
    runner_timestamp BIGINT,
    inactivity_secs BIGINT,
    disconnected_at BIGINT,
    stop_requested_at BIGINT,
    remove_at BIGINT,
    ready BIGINT NOT NULL DEFAULT 0,
    registered BIGINT NOT NULL DEFAULT 0,
    image_pull_progress TEXT,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    next_wake_at BIGINT,
    deadline_at BIGINT,
    waiting_for TEXT,
    lease_owner TEXT,
    lease_expires_at BIGINT
);
CREATE UNIQUE INDEX uq_jobs_submission ON jobs (run_id, replica_num, job_num, submission_num);
CREATE INDEX ix_jobs_instance ON jobs (instance_id) WHERE instance_id IS NOT NULL;
CREATE INDEX ix_jobs_active ON jobs (status) WHERE status NOT IN ('terminated', 'aborted', 'failed', 'done');

CREATE TABLE operations (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    job_id TEXT REFERENCES jobs (id) ON DELETE CASCADE,
    instance_id TEXT REFERENCES instances (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    next_attempt_at BIGINT,
    error TEXT,
    result TEXT,
    version BIGINT NOT NULL
);
CREATE INDEX ix_operations_job ON operations (job_id);
CREATE INDEX ix_operations_instance ON operations (instance_id);

CREATE TABLE volumes (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    status_message TEXT,
    configuration TEXT NOT NULL,
    provisioning_data TEXT,
    auto_cleanup_enabled BIGINT NOT NULL DEFAULT 0,
    to_be_deleted BIGINT NOT NULL DEFAULT 0,
    deleted BIGINT NOT NULL DEFAULT 0,
    deleted_at BIGINT,
    last_job_processed_at BIGINT,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL
);
CREATE UNIQUE INDEX uq_volumes_name ON volumes (project_id, name) WHERE deleted = 0;

CREATE TABLE gateways (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    status_message TEXT,
    configuration TEXT NOT NULL,
    wildcard_domain TEXT,
    hostname TEXT,
    backend_id TEXT,
    to_be_deleted BIGINT NOT NULL DEFAULT 0,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE events (
    id TEXT PRIMARY KEY,
    message TEXT NOT NULL,
    recorded_at BIGINT NOT NULL,
    actor_user_id TEXT REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX ix_events_recorded ON events (recorded_at, id);

CREATE TABLE event_targets (
    event_id TEXT NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    entity_type TEXT NOT NULL,
    entity_id TEXT NOT NULL,
    entity_name TEXT NOT NULL,
    project_id TEXT,
    run_id TEXT,
    fleet_id TEXT,
    gateway_id TEXT,
    PRIMARY KEY (event_id, position)
);
CREATE INDEX ix_event_targets_entity ON event_targets (entity_id);
CREATE INDEX ix_event_targets_project ON event_targets (project_id);
CREATE INDEX ix_event_targets_run ON event_targets (run_id);
CREATE INDEX ix_event_targets_fleet ON event_targets (fleet_id);

CREATE TABLE job_metrics_points (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    timestamp_micro BIGINT NOT NULL,
    cpu_usage_micro BIGINT NOT NULL,
    memory_usage_bytes BIGINT NOT NULL,
    memory_working_set_bytes BIGINT NOT NULL,
    gpus_memory_usage_bytes TEXT NOT NULL,
    gpus_util_percent TEXT NOT NULL,
    PRIMARY KEY (job_id, timestamp_micro)
);
