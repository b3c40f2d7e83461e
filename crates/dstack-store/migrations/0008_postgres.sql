-- What SQLite has no use for.

-- postgres only
-- Servers that share a database remember whose a token is and who is a member of what. Whatever changes that tells all of
-- them, whoever changes it.
CREATE FUNCTION dstack_access_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('dstack_access', 'changed'); RETURN NULL; END $$;
CREATE TRIGGER tr_users_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON users FOR EACH STATEMENT EXECUTE FUNCTION dstack_access_changed();
CREATE TRIGGER tr_user_tokens_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON user_tokens FOR EACH STATEMENT EXECUTE FUNCTION dstack_access_changed();
CREATE TRIGGER tr_projects_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON projects FOR EACH STATEMENT EXECUTE FUNCTION dstack_access_changed();
CREATE TRIGGER tr_members_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON members FOR EACH STATEMENT EXECUTE FUNCTION dstack_access_changed();
-- They are encrypted: there is nothing to compress.
ALTER TABLE runs ALTER COLUMN run_spec SET STORAGE EXTERNAL;
ALTER TABLE jobs ALTER COLUMN job_spec SET STORAGE EXTERNAL;
