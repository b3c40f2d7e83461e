-- Which servers live: what a row's lease_owner names counts only as long as its server is here and not out of date.
-- lease_expires_at of the driven tables is not used any more.
CREATE TABLE servers (
    owner TEXT PRIMARY KEY,
    expires_at BIGINT NOT NULL
);
