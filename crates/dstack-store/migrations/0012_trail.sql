-- Each index is a write, and events are most of what is written. Nearly all of them are about one thing, so that an event
-- and what it is about are one row; one about several things has a row for each (position 0, 1, …). Runs and jobs are found
-- through their run, everything else through its own id.
ALTER TABLE events RENAME TO events_before;
CREATE TABLE events (
    recorded_at BIGINT NOT NULL,
    id TEXT NOT NULL,
    position BIGINT NOT NULL,
    message TEXT NOT NULL,
    actor_user_id TEXT,
    for_managers BIGINT NOT NULL DEFAULT 0,
    entity_type TEXT,
    entity_id TEXT,
    entity_name TEXT,
    project_id TEXT,
    run_id TEXT,
    fleet_id TEXT,
    gateway_id TEXT,
    PRIMARY KEY (recorded_at, id, position)
);
INSERT INTO events (recorded_at, id, position, message, actor_user_id, for_managers, entity_type, entity_id, entity_name,
    project_id, run_id, fleet_id, gateway_id)
SELECT e.recorded_at, e.id, COALESCE(t.position, 0), e.message, e.actor_user_id, e.for_managers, t.entity_type, t.entity_id,
    t.entity_name, t.project_id, CASE t.entity_type WHEN 'run' THEN t.entity_id ELSE t.run_id END, t.fleet_id, t.gateway_id
FROM events_before e LEFT JOIN event_targets t ON t.event_id = e.id;
DROP TABLE event_targets;
DROP TABLE events_before;
CREATE INDEX ix_events_entity ON events (entity_id) WHERE entity_type NOT IN ('run', 'job');
CREATE INDEX ix_events_project ON events (project_id) WHERE project_id IS NOT NULL;
CREATE INDEX ix_events_run ON events (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX ix_events_fleet ON events (fleet_id) WHERE fleet_id IS NOT NULL;

-- postgres only
-- Users and projects are never removed, and runs may point to repos that were. To look at them, PostgreSQL locks the row of
-- the same project, user and repo for every run, which writes to rows that all runs share.
ALTER TABLE runs DROP CONSTRAINT runs_project_id_fkey;
ALTER TABLE runs DROP CONSTRAINT runs_user_id_fkey;
ALTER TABLE runs DROP CONSTRAINT runs_repo_id_fkey;
ALTER TABLE jobs DROP CONSTRAINT jobs_project_id_fkey;
