-- A lease belongs to one process, and a commit names the generation under which it was decided. expires_at is by the
-- database's clock.
ALTER TABLE servers ADD COLUMN process TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN generation BIGINT NOT NULL DEFAULT 0;
