-- Events that only those who govern the project see: changes of which dstack 0.22.5 writes none.
ALTER TABLE events ADD COLUMN for_managers BIGINT NOT NULL DEFAULT 0;
