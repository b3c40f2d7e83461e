-- A roll-out of a service in which the new deployment stands beside the old one, as JSON. NULL: none was, since it was applied last.
ALTER TABLE runs ADD COLUMN rollout TEXT;
-- What the run asked for before, sealed as run_spec is. NULL: there is nothing to go back to.
ALTER TABLE runs ADD COLUMN rollout_from TEXT;
