-- The way to the machine of a gateway's replica, with the host key that was seen; NULL: it runs on a host of a fleet, or was not reached yet.
ALTER TABLE gateway_replicas ADD COLUMN reach TEXT;
