-- What a cloud has made is written down in any case: a backend is not deleted while one of its clouds is asked for an
-- instance, and one that is there all the same is to be seen, and ended, rather than refused for ever.

-- sqlite only
DROP TRIGGER tr_instances_backend;

-- postgres only
DROP TRIGGER tr_instances_backend ON instances;
