-- What clouds have of ours that belongs to nobody, since when: the wait before it is reported or ended outlives servers.
CREATE TABLE orphans (
    key TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    description TEXT NOT NULL,
    first_seen_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL,
    is_reported BIGINT NOT NULL
);
-- What one server does for all, and which one.
CREATE TABLE duties (
    name TEXT PRIMARY KEY,
    lease_owner TEXT NOT NULL
);
