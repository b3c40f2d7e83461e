-- When a job began to end: so long its volumes are waited for by others, whatever the server does meanwhile.
ALTER TABLE jobs ADD COLUMN ending_since BIGINT;
