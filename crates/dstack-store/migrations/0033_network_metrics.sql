-- Bytes that a job has received and sent so far. NULL: its network is that of its host, or its runner does not tell.
ALTER TABLE job_metrics_points ADD COLUMN network_receive_bytes BIGINT;
ALTER TABLE job_metrics_points ADD COLUMN network_transmit_bytes BIGINT;
