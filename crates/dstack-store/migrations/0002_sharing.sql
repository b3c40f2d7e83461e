-- Exports and imports, replicas of gateways, further tokens of users; the order of backends.

ALTER TABLE backends ADD COLUMN created_at BIGINT NOT NULL DEFAULT 0;

CREATE TABLE exports (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    is_global BIGINT NOT NULL DEFAULT 0,
    UNIQUE (project_id, name)
);

CREATE TABLE imports (
    id TEXT PRIMARY KEY,
    export_id TEXT NOT NULL REFERENCES exports (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    UNIQUE (project_id, export_id)
);
CREATE INDEX ix_imports_export ON imports (export_id);

CREATE TABLE exported_fleets (
    export_id TEXT NOT NULL REFERENCES exports (id) ON DELETE CASCADE,
    fleet_id TEXT NOT NULL REFERENCES fleets (id) ON DELETE CASCADE,
    PRIMARY KEY (export_id, fleet_id)
);

CREATE TABLE exported_gateways (
    export_id TEXT NOT NULL REFERENCES exports (id) ON DELETE CASCADE,
    gateway_id TEXT NOT NULL REFERENCES gateways (id) ON DELETE CASCADE,
    PRIMARY KEY (export_id, gateway_id)
);

CREATE TABLE gateway_replicas (
    id TEXT PRIMARY KEY,
    gateway_id TEXT NOT NULL REFERENCES gateways (id) ON DELETE CASCADE,
    replica_num BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    status_message TEXT,
    configuration TEXT NOT NULL,
    provisioning_data TEXT,
    deleted BIGINT NOT NULL DEFAULT 0,
    last_processed_at BIGINT NOT NULL,
    version BIGINT NOT NULL
);
CREATE INDEX ix_gateway_replicas_gateway ON gateway_replicas (gateway_id);

CREATE TABLE user_tokens (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    token_hash TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    read_only BIGINT NOT NULL DEFAULT 0,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    UNIQUE (user_id, name)
);
