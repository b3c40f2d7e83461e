-- That something is being ended is told before its cloud is asked: whoever finds it gone tells that it was ended.
ALTER TABLE orphans ADD COLUMN is_ending BIGINT NOT NULL DEFAULT 0;
-- Names in clouds have the last digits of the id of a row, which may be over: nobody looks through all that there ever were.
CREATE INDEX ix_instances_id_end ON instances (substr(id, 25));
CREATE INDEX ix_volumes_id_end ON volumes (substr(id, 25));
