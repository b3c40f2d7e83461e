-- Which machine a host is, however it is named: two names of one machine are one host. And since when an agent is out of reach:
-- jobs wait for a host that is away for a moment.
ALTER TABLE instances ADD COLUMN machine TEXT;
ALTER TABLE instances ADD COLUMN unreachable_since BIGINT;
CREATE INDEX ix_instances_machine ON instances (machine) WHERE deleted = 0 AND machine IS NOT NULL;
