-- The load balancer before the gateway, and which machines are behind it; NULL: there is none, or it is not made yet.
ALTER TABLE gateways ADD COLUMN load_balancer TEXT;
