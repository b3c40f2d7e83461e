-- Operations of instances themselves are few; those of jobs are found by their job.
DROP INDEX ix_operations_instance;
CREATE INDEX ix_operations_instance ON operations (instance_id) WHERE job_id IS NULL;
-- postgres only
-- Both are written together, and deleted together.
ALTER TABLE event_targets DROP CONSTRAINT event_targets_event_id_fkey;
