-- How the probes of jobs of services went last, as JSON. NULL: the job does not run yet, or began to under a version that asked none.
ALTER TABLE jobs ADD COLUMN probes TEXT;
