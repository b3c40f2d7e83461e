-- The name first: PostgreSQL finds a run by its name through this index whatever it knows of the table, where by project it
-- took the index by time while the table was new, and read all runs of the project.
DROP INDEX uq_runs_name;
CREATE UNIQUE INDEX uq_runs_name ON runs (run_name, project_id) WHERE deleted = 0;
-- Most events are about no fleet.
DROP INDEX ix_event_targets_fleet;
CREATE INDEX ix_event_targets_fleet ON event_targets (fleet_id) WHERE fleet_id IS NOT NULL;
