-- Nothing new begins in a project that is deleted, whoever is faster: deleting it changes its row before it looks for what
-- is in use, and what begins holds that row until it is there to be found. The same for backends and the instances that are
-- made in them: what is left of the server's hands cannot be ended any more.

-- sqlite only
CREATE TRIGGER tr_runs_project BEFORE INSERT ON runs WHEN NEW.status NOT IN ('terminated', 'failed', 'done') AND (SELECT deleted FROM projects WHERE id = NEW.project_id) = 1 BEGIN SELECT RAISE(ABORT, 'the project is deleted'); END;
CREATE TRIGGER tr_fleets_project BEFORE INSERT ON fleets WHEN NEW.deleted = 0 AND (SELECT deleted FROM projects WHERE id = NEW.project_id) = 1 BEGIN SELECT RAISE(ABORT, 'the project is deleted'); END;
CREATE TRIGGER tr_volumes_project BEFORE INSERT ON volumes WHEN NEW.deleted = 0 AND (SELECT deleted FROM projects WHERE id = NEW.project_id) = 1 BEGIN SELECT RAISE(ABORT, 'the project is deleted'); END;
CREATE TRIGGER tr_gateways_project BEFORE INSERT ON gateways WHEN (SELECT deleted FROM projects WHERE id = NEW.project_id) = 1 BEGIN SELECT RAISE(ABORT, 'the project is deleted'); END;
CREATE TRIGGER tr_instances_new_backend BEFORE INSERT ON instances WHEN NEW.status <> 'terminated' AND NEW.backend IS NOT NULL AND NEW.backend <> 'remote' AND NOT EXISTS (SELECT 1 FROM backends WHERE project_id = NEW.project_id AND type = NEW.backend) BEGIN SELECT RAISE(ABORT, 'the backend is deleted'); END;
CREATE TRIGGER tr_instances_backend BEFORE UPDATE OF backend ON instances WHEN NEW.backend IS NOT OLD.backend AND NEW.backend IS NOT NULL AND NEW.backend <> 'remote' AND NOT EXISTS (SELECT 1 FROM backends WHERE project_id = NEW.project_id AND type = NEW.backend) BEGIN SELECT RAISE(ABORT, 'the backend is deleted'); END;

-- postgres only
CREATE FUNCTION dstack_project_is_there() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 FROM projects WHERE id = NEW.project_id AND deleted = 0 FOR SHARE; IF NOT FOUND THEN RAISE EXCEPTION 'the project is deleted' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;
CREATE TRIGGER tr_runs_project BEFORE INSERT ON runs FOR EACH ROW WHEN (NEW.status NOT IN ('terminated', 'failed', 'done')) EXECUTE FUNCTION dstack_project_is_there();
CREATE TRIGGER tr_fleets_project BEFORE INSERT ON fleets FOR EACH ROW WHEN (NEW.deleted = 0) EXECUTE FUNCTION dstack_project_is_there();
CREATE TRIGGER tr_volumes_project BEFORE INSERT ON volumes FOR EACH ROW WHEN (NEW.deleted = 0) EXECUTE FUNCTION dstack_project_is_there();
CREATE TRIGGER tr_gateways_project BEFORE INSERT ON gateways FOR EACH ROW EXECUTE FUNCTION dstack_project_is_there();
CREATE FUNCTION dstack_backend_is_there() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 FROM backends WHERE project_id = NEW.project_id AND type = NEW.backend FOR SHARE; IF NOT FOUND THEN RAISE EXCEPTION 'the backend is deleted' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;
CREATE TRIGGER tr_instances_new_backend BEFORE INSERT ON instances FOR EACH ROW WHEN (NEW.status <> 'terminated' AND NEW.backend IS NOT NULL AND NEW.backend <> 'remote') EXECUTE FUNCTION dstack_backend_is_there();
CREATE TRIGGER tr_instances_backend BEFORE UPDATE OF backend ON instances FOR EACH ROW WHEN (NEW.backend IS DISTINCT FROM OLD.backend AND NEW.backend IS NOT NULL AND NEW.backend <> 'remote') EXECUTE FUNCTION dstack_backend_is_there();
