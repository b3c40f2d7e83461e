-- That a cloud will take an instance away: whoever drives it after a restart knows it, and no job is placed there meanwhile.
ALTER TABLE instances ADD COLUMN leaving_because TEXT;
ALTER TABLE instances ADD COLUMN leaving_at BIGINT;
