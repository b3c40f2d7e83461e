-- Databases that were migrated before the condition had the words of the questions have an index that answers none of them.
DROP INDEX ix_volumes_driven;
CREATE INDEX ix_volumes_driven ON volumes (lease_owner) WHERE deleted = 0;
