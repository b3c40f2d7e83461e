-- How a fleet is kept at its size.
ALTER TABLE fleets ADD COLUMN current_master_instance_id TEXT;
ALTER TABLE fleets ADD COLUMN consolidation_attempt BIGINT NOT NULL DEFAULT 0;
ALTER TABLE fleets ADD COLUMN last_consolidated_at BIGINT;
