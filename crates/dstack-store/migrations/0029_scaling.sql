-- Replicas that each group of a service should have that scales by its requests, as JSON. NULL: no group does, or none has begun to.
ALTER TABLE runs ADD COLUMN desired_replica_counts TEXT;
