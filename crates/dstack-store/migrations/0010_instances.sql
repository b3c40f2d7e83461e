-- Operations of instances themselves are few; those of jobs are found by their job.
DROP INDEX ix_operations_instance;
CREATE INDEX ix_operations_instance ON operations (instance_id) WHERE job_id IS NULL;
