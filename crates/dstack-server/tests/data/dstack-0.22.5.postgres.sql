-- A database of dstack 0.22.5 on PostgreSQL: the tables are what its migrations made of an empty database (without indexes and
-- foreign keys), the rows are those of dstack-0.22.5.sql, written by its own models.
SET standard_conforming_strings = on;
CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE backends (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    type character varying(100) NOT NULL,
    config character varying(20000) NOT NULL,
    auth character varying(20000) NOT NULL,
    source_config character varying(20000),
    source_auth character varying(20000)
);
CREATE TABLE codes (
    id uuid NOT NULL,
    repo_id uuid NOT NULL,
    blob_hash character varying(4000) NOT NULL,
    blob bytea
);
CREATE TABLE compute_groups (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    fleet_id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    status character varying(100) NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    deleted boolean NOT NULL,
    deleted_at timestamp without time zone,
    provisioning_data text NOT NULL,
    first_termination_retry_at timestamp without time zone,
    last_termination_retry_at timestamp without time zone,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100)
);
CREATE TABLE event_targets (
    id uuid NOT NULL,
    event_id uuid NOT NULL,
    entity_project_id uuid,
    entity_type character varying(100) NOT NULL,
    entity_id uuid NOT NULL,
    entity_name character varying(200) NOT NULL,
    entity_run_id uuid,
    entity_fleet_id uuid,
    entity_gateway_id uuid
);
CREATE TABLE events (
    id uuid NOT NULL,
    message text NOT NULL,
    recorded_at timestamp without time zone NOT NULL,
    actor_user_id uuid
);
CREATE TABLE exported_fleets (
    id uuid NOT NULL,
    export_id uuid NOT NULL,
    fleet_id uuid NOT NULL
);
CREATE TABLE exported_gateways (
    id uuid NOT NULL,
    export_id uuid NOT NULL,
    gateway_id uuid NOT NULL
);
CREATE TABLE exports (
    id uuid NOT NULL,
    name character varying(100) NOT NULL,
    project_id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    is_global boolean DEFAULT false NOT NULL
);
CREATE TABLE file_archives (
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    blob_hash text NOT NULL,
    blob bytea
);
CREATE TABLE fleets (
    id uuid NOT NULL,
    name character varying(100) NOT NULL,
    project_id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    deleted boolean NOT NULL,
    deleted_at timestamp without time zone,
    status character varying(100) NOT NULL,
    status_message text,
    spec text NOT NULL,
    consolidation_attempt integer DEFAULT 0 NOT NULL,
    last_consolidated_at timestamp without time zone,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100),
    current_master_instance_id uuid
);
CREATE TABLE gateway_computes (
    id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    instance_id character varying(100),
    ip_address character varying(100),
    region character varying(100),
    backend_id uuid NOT NULL,
    ssh_private_key text NOT NULL,
    ssh_public_key text NOT NULL,
    deleted boolean DEFAULT false NOT NULL,
    active boolean NOT NULL,
    hostname character varying(100),
    configuration text,
    backend_data text,
    app_updated_at timestamp without time zone NOT NULL,
    replica_num integer DEFAULT 0 NOT NULL,
    gateway_id uuid,
    last_processed_at timestamp without time zone NOT NULL,
    status character varying(100) NOT NULL,
    status_message text,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100),
    scale_in boolean DEFAULT false NOT NULL,
    skip_min_processing_interval boolean DEFAULT false NOT NULL,
    name character varying(100) NOT NULL
);
CREATE TABLE gateways (
    id uuid NOT NULL,
    name character varying(100) NOT NULL,
    region character varying(100) NOT NULL,
    wildcard_domain character varying(100),
    created_at timestamp without time zone NOT NULL,
    project_id uuid NOT NULL,
    backend_id uuid NOT NULL,
    gateway_compute_id uuid,
    configuration text,
    status character varying(100) NOT NULL,
    status_message text,
    last_processed_at timestamp without time zone NOT NULL,
    to_be_deleted boolean DEFAULT false NOT NULL,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100),
    forbid_new_services boolean DEFAULT false NOT NULL,
    desired_replica_count integer,
    replica_scale_attempt integer DEFAULT 0 NOT NULL,
    last_replica_scale_attempt_at timestamp without time zone,
    last_update_at timestamp without time zone,
    hostname character varying(255),
    backend_data text
);
CREATE TABLE imports (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    export_id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL
);
CREATE TABLE instance_health_checks (
    id uuid NOT NULL,
    instance_id uuid NOT NULL,
    collected_at timestamp without time zone NOT NULL,
    status character varying(100) NOT NULL,
    response text NOT NULL
);
CREATE TABLE instances (
    id uuid NOT NULL,
    name character varying(50) NOT NULL,
    created_at timestamp without time zone NOT NULL,
    deleted boolean NOT NULL,
    deleted_at timestamp without time zone,
    project_id uuid NOT NULL,
    pool_id uuid,
    status character varying(100) NOT NULL,
    started_at timestamp without time zone,
    finished_at timestamp without time zone,
    termination_policy character varying(100),
    termination_idle_time integer NOT NULL,
    backend character varying(100),
    backend_data text,
    region character varying(2000),
    price double precision,
    job_provisioning_data text,
    offer text,
    last_job_processed_at timestamp without time zone,
    termination_deadline timestamp without time zone,
    termination_reason character varying(4000),
    health_status character varying(4000),
    profile text,
    requirements text,
    instance_configuration text,
    last_retry_at timestamp without time zone,
    remote_connection_info text,
    unreachable boolean NOT NULL,
    instance_num integer NOT NULL,
    fleet_id uuid,
    last_processed_at timestamp without time zone NOT NULL,
    first_termination_retry_at timestamp without time zone,
    last_termination_retry_at timestamp without time zone,
    total_blocks integer,
    busy_blocks integer NOT NULL,
    health character varying(100) NOT NULL,
    compute_group_id uuid,
    termination_reason_message character varying(4000),
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100),
    provisioning_job_id uuid,
    skip_min_processing_interval boolean DEFAULT false NOT NULL
);
CREATE TABLE job_metrics_points (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    timestamp_micro bigint NOT NULL,
    cpu_usage_micro bigint NOT NULL,
    memory_usage_bytes bigint NOT NULL,
    memory_working_set_bytes bigint NOT NULL,
    gpus_memory_usage_bytes text NOT NULL,
    gpus_util_percent text NOT NULL
);
CREATE TABLE job_prometheus_metrics (
    job_id uuid NOT NULL,
    collected_at timestamp without time zone NOT NULL,
    text text NOT NULL
);
CREATE TABLE jobs (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    run_id uuid NOT NULL,
    run_name character varying(100) NOT NULL,
    job_num integer NOT NULL,
    job_name character varying(100) NOT NULL,
    submission_num integer NOT NULL,
    submitted_at timestamp without time zone NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    status character varying(100) NOT NULL,
    termination_reason character varying(100),
    job_spec_data text NOT NULL,
    job_provisioning_data text,
    runner_timestamp bigint,
    remove_at timestamp without time zone,
    used_instance_id uuid,
    replica_num integer NOT NULL,
    termination_reason_message text,
    instance_assigned boolean NOT NULL,
    job_runtime_data text,
    volumes_detached_at timestamp without time zone,
    instance_id uuid,
    inactivity_secs integer,
    exit_status integer,
    disconnected_at timestamp without time zone,
    deployment_num integer NOT NULL,
    registered boolean DEFAULT false NOT NULL,
    fleet_id uuid,
    waiting_master_job boolean,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100),
    graceful_termination_attempts integer,
    image_pull_progress text,
    skip_min_processing_interval boolean DEFAULT false NOT NULL,
    ready boolean DEFAULT false NOT NULL,
    running_at timestamp without time zone
);
CREATE TABLE members (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    user_id uuid NOT NULL,
    project_role character varying(100) NOT NULL,
    member_num integer
);
CREATE TABLE placement_groups (
    id uuid NOT NULL,
    name character varying(100) NOT NULL,
    project_id uuid NOT NULL,
    fleet_id uuid NOT NULL,
    fleet_deleted boolean NOT NULL,
    created_at timestamp without time zone NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    deleted boolean NOT NULL,
    deleted_at timestamp without time zone,
    configuration text NOT NULL,
    provisioning_data text,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100)
);
CREATE TABLE pools (
    id uuid NOT NULL,
    name character varying(50) NOT NULL,
    created_at timestamp without time zone NOT NULL,
    deleted boolean NOT NULL,
    deleted_at timestamp without time zone,
    project_id uuid NOT NULL
);
CREATE TABLE probes (
    id uuid NOT NULL,
    name character varying(100) NOT NULL,
    job_id uuid NOT NULL,
    probe_num integer NOT NULL,
    due timestamp without time zone NOT NULL,
    success_streak bigint NOT NULL,
    active boolean NOT NULL
);
CREATE TABLE projects (
    id uuid NOT NULL,
    name character varying(50) NOT NULL,
    ssh_private_key text NOT NULL,
    ssh_public_key text NOT NULL,
    default_gateway_id uuid,
    owner_id uuid NOT NULL,
    deleted boolean NOT NULL,
    default_pool_id uuid,
    created_at timestamp without time zone NOT NULL,
    is_public boolean DEFAULT false NOT NULL,
    original_name character varying(50),
    templates_repo text
);
CREATE TABLE repo_creds (
    id uuid NOT NULL,
    repo_id uuid NOT NULL,
    user_id uuid NOT NULL,
    creds character varying(10000) NOT NULL
);
CREATE TABLE repos (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    name character varying(100) NOT NULL,
    type character varying(100) NOT NULL,
    info text NOT NULL,
    creds character varying(5000)
);
CREATE TABLE runs (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    repo_id uuid NOT NULL,
    user_id uuid NOT NULL,
    submitted_at timestamp without time zone NOT NULL,
    run_name character varying(100) NOT NULL,
    status character varying(100) NOT NULL,
    run_spec text NOT NULL,
    deleted boolean NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    gateway_id uuid,
    termination_reason character varying(100),
    service_spec text,
    fleet_id uuid,
    resubmission_attempt integer NOT NULL,
    priority integer NOT NULL,
    deployment_num integer NOT NULL,
    desired_replica_count integer NOT NULL,
    next_triggered_at timestamp without time zone,
    desired_replica_counts text,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100),
    skip_min_processing_interval boolean DEFAULT false NOT NULL
);
CREATE TABLE secrets (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    updated_at timestamp without time zone NOT NULL,
    name character varying(200) NOT NULL,
    value character varying NOT NULL
);
CREATE TABLE service_registrations (
    id uuid NOT NULL,
    run_id uuid NOT NULL,
    gateway_replica_id uuid NOT NULL,
    is_registered boolean NOT NULL,
    register_attempt integer NOT NULL,
    register_status_message text,
    unregister_attempt integer NOT NULL,
    unregister_status_message text
);
CREATE TABLE service_replica_registrations (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    gateway_replica_id uuid NOT NULL,
    is_registered boolean NOT NULL,
    register_attempt integer NOT NULL,
    register_status_message text,
    unregister_attempt integer NOT NULL,
    unregister_status_message text
);
CREATE TABLE service_router_worker_sync (
    id uuid NOT NULL,
    run_id uuid NOT NULL,
    deleted boolean DEFAULT false NOT NULL,
    created_at timestamp without time zone NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100)
);
CREATE TABLE user_public_keys (
    id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    user_id uuid NOT NULL,
    name character varying(100) NOT NULL,
    type character varying(100) NOT NULL,
    fingerprint character varying(100) NOT NULL,
    key text NOT NULL
);
CREATE TABLE users (
    id uuid NOT NULL,
    name character varying(50) NOT NULL,
    token character varying(200) NOT NULL,
    global_role character varying(100) NOT NULL,
    projects_quota integer NOT NULL,
    email character varying(200),
    token_hash character varying(2000) NOT NULL,
    active boolean NOT NULL,
    created_at timestamp without time zone NOT NULL,
    ssh_private_key text,
    ssh_public_key text,
    deleted boolean DEFAULT false NOT NULL,
    original_name character varying(50)
);
CREATE TABLE volumes (
    id uuid NOT NULL,
    name character varying(100) NOT NULL,
    project_id uuid NOT NULL,
    created_at timestamp without time zone NOT NULL,
    last_processed_at timestamp without time zone NOT NULL,
    deleted boolean NOT NULL,
    deleted_at timestamp without time zone,
    status character varying(100) NOT NULL,
    status_message text,
    configuration text NOT NULL,
    volume_provisioning_data text,
    volume_attachment_data text,
    user_id uuid NOT NULL,
    last_job_processed_at timestamp without time zone,
    to_be_deleted boolean DEFAULT false NOT NULL,
    auto_cleanup_enabled boolean,
    lock_expires_at timestamp without time zone,
    lock_token uuid,
    lock_owner character varying(100)
);
CREATE TABLE volumes_attachments (
    volume_id uuid NOT NULL,
    instance_id uuid NOT NULL,
    attachment_data text
);
INSERT INTO alembic_version VALUES ('40f19bea9d2a');
INSERT INTO backends VALUES ('5f0d3a5c-0000-4000-8000-000000000001', '2df5182a-a431-4fec-be6d-a3d91628f157', 'RUNPOD', '{"type":"runpod","regions":null,"community_cloud":null}', 'enc:identity:noname:{"type":"api_key","api_key":"imported-api-key"}', NULL, NULL);
INSERT INTO event_targets VALUES ('e1348747-49b2-47c3-87a9-e7a3e0b234ea', 'eac71e95-9df4-45f6-9ef7-ed2239528aee', NULL, 'USER', '1302e644-4663-4c84-97fa-1398315f0eaa', 'admin', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('39f50caf-0b42-4c78-86c5-7de69b198498', '7bc54a2f-a86a-4f14-8944-6e1f8abc286e', '9e800fa7-b208-4832-ab7f-d83660470d43', 'PROJECT', '9e800fa7-b208-4832-ab7f-d83660470d43', 'main', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('a5479de3-a969-41be-b0b1-30c83dde2271', 'a8fe5852-0ad8-46ba-b678-eb849878ebfb', NULL, 'USER', '5af8011d-1e3b-4150-ae7d-8762bf652e7d', 'alice', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('8fc0ea6d-bcbe-44a5-b691-08a1b413d386', '8181e72b-2ff5-4319-93e0-202a3436059f', NULL, 'USER', 'b770a3e5-a111-4134-8a3e-760a81aac7a0', 'gone', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('cee43cb6-a544-487d-b100-6b260ab75591', 'ea65b250-0a3a-45f3-8d2c-69a40182cb5f', NULL, 'USER', 'b770a3e5-a111-4134-8a3e-760a81aac7a0', 'gone', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('e13d6697-2280-4260-9f70-838a7ff113f6', '7c42d98a-6681-47e2-a4bd-717b2b659756', '2df5182a-a431-4fec-be6d-a3d91628f157', 'PROJECT', '2df5182a-a431-4fec-be6d-a3d91628f157', 'team', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('e343311c-9a36-4881-a666-0cb73f0cbe4a', '8b52f973-c42e-48fe-8a86-d7b19ead1bba', '2df5182a-a431-4fec-be6d-a3d91628f157', 'SECRET', '4de5c3ac-a315-4ddb-915b-31fcb9a400f5', 'S', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('13577cc7-4a0f-4056-90f6-260e33389248', 'd1e3853f-7ac1-4149-9812-d9f4162ab2cc', NULL, 'USER', '1302e644-4663-4c84-97fa-1398315f0eaa', 'admin', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('e38a8248-f3c6-4aed-a8e1-29b468c02d78', 'd0496ee2-6f12-433d-8f12-a53848dcb295', '9e800fa7-b208-4832-ab7f-d83660470d43', 'FLEET', '9663b4c1-7dd5-40ca-8622-235d3e79c532', 'elastic', NULL, '9663b4c1-7dd5-40ca-8622-235d3e79c532', NULL);
INSERT INTO event_targets VALUES ('dc8761e4-987e-4c9e-9f77-2acf90aebb29', 'afafa768-65b4-4d67-ab2d-a111690fb961', NULL, 'USER', 'da915711-04ec-4381-9bac-87325369c918', 'gone', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('a7ce873e-d84a-4989-862f-0c50c6b7f9d3', '7d05f5a6-0ca0-4028-8665-90991a8b4add', NULL, 'USER', 'da915711-04ec-4381-9bac-87325369c918', 'gone', NULL, NULL, NULL);
INSERT INTO event_targets VALUES ('ab768dea-27e3-4074-867b-70e01ab5bfc8', '1d65fce2-997e-4d99-9b49-8aa4a1131d39', '9e800fa7-b208-4832-ab7f-d83660470d43', 'FLEET', 'c128052f-92c8-4d62-81b8-4da7c0bc1f07', 'hosts', NULL, 'c128052f-92c8-4d62-81b8-4da7c0bc1f07', NULL);
INSERT INTO event_targets VALUES ('484a9f8a-89f9-4b39-acae-83847a08590c', 'feca375b-052b-4ede-adab-82d82cbcd784', '9e800fa7-b208-4832-ab7f-d83660470d43', 'INSTANCE', '6e86dafc-a5d7-41b4-a434-3cb956dfc749', 'hosts-0', NULL, 'c128052f-92c8-4d62-81b8-4da7c0bc1f07', NULL);
INSERT INTO event_targets VALUES ('faf4986b-5c7e-4313-a443-3649aaf500a6', '95af50fe-0d70-43b7-ba17-e06769caa825', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '41843b66-2982-426e-8e1e-736cd3067ee9', 'finished', '41843b66-2982-426e-8e1e-736cd3067ee9', NULL, NULL);
INSERT INTO event_targets VALUES ('68b66439-4d39-401f-9a6d-8c95a272c6c4', '27a809bb-1093-484d-9e86-36607a5d24cf', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', 'c056de45-16ab-4636-ba41-404bb48c5cfd', 'finished-0-0', '41843b66-2982-426e-8e1e-736cd3067ee9', NULL, NULL);
INSERT INTO event_targets VALUES ('6c75fbba-ab43-4821-b9c2-4cd19f7f4c47', '818c126c-8316-4056-9d8f-e80a0fc0e7c4', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', 'c056de45-16ab-4636-ba41-404bb48c5cfd', 'finished-0-0', '41843b66-2982-426e-8e1e-736cd3067ee9', NULL, NULL);
INSERT INTO event_targets VALUES ('7425f4df-c608-4284-be99-d7f487f07fd2', 'd142af69-38d7-4710-a13f-3b06772b7ca1', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '5591f530-5e47-45d8-a123-004ec940f1e4', 'second', '5591f530-5e47-45d8-a123-004ec940f1e4', NULL, NULL);
INSERT INTO event_targets VALUES ('a0c0c79b-6819-40bb-b93a-94b90b03914d', '73a529f4-68cd-47fc-82bf-104fbc7d5dab', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', 'c724ac43-1cf2-4b35-97a9-92294b336e4f', 'second-0-0', '5591f530-5e47-45d8-a123-004ec940f1e4', NULL, NULL);
INSERT INTO event_targets VALUES ('5bbb0fd6-7ae0-4d11-8ff7-8a5ab42f9adb', '63df8ac2-6860-492e-9ab3-32c69515723a', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', 'c724ac43-1cf2-4b35-97a9-92294b336e4f', 'second-0-0', '5591f530-5e47-45d8-a123-004ec940f1e4', NULL, NULL);
INSERT INTO event_targets VALUES ('f6833f1b-7921-4a4a-8a20-830d671dbfd9', '676847df-b2a5-46e9-9778-cadf52912dc1', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', 'c056de45-16ab-4636-ba41-404bb48c5cfd', 'finished-0-0', '41843b66-2982-426e-8e1e-736cd3067ee9', NULL, NULL);
INSERT INTO event_targets VALUES ('e88ac01f-86e0-47e1-a873-b23bbc1d9e79', 'a4219853-51d9-4348-b748-f1b3fff4ae8b', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', 'c724ac43-1cf2-4b35-97a9-92294b336e4f', 'second-0-0', '5591f530-5e47-45d8-a123-004ec940f1e4', NULL, NULL);
INSERT INTO event_targets VALUES ('23ba37df-3d50-4570-9979-a693b05fd6a1', '999cb0dd-d827-40b0-92a7-58cfa6cb351d', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '41843b66-2982-426e-8e1e-736cd3067ee9', 'finished', '41843b66-2982-426e-8e1e-736cd3067ee9', NULL, NULL);
INSERT INTO event_targets VALUES ('8fe921db-e35a-4243-9567-81c49e85c147', 'be78d544-f437-4669-8178-e7918d039ba0', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '5591f530-5e47-45d8-a123-004ec940f1e4', 'second', '5591f530-5e47-45d8-a123-004ec940f1e4', NULL, NULL);
INSERT INTO event_targets VALUES ('dde02415-f103-4128-acf6-7a3790636121', '8974b30e-7c5b-4eca-942f-5fb5cd8f4f96', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '41843b66-2982-426e-8e1e-736cd3067ee9', 'finished', '41843b66-2982-426e-8e1e-736cd3067ee9', NULL, NULL);
INSERT INTO event_targets VALUES ('c6793f11-6313-4b62-b8bb-33454d3f3f46', '7bedb2c4-556d-479e-bc6e-83b88e9fc453', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '5591f530-5e47-45d8-a123-004ec940f1e4', 'second', '5591f530-5e47-45d8-a123-004ec940f1e4', NULL, NULL);
INSERT INTO event_targets VALUES ('42f59654-f8cd-4b03-b9ff-9831a8a3b0ff', '750a07dd-eb84-4c19-ae17-a4970480a45a', '9e800fa7-b208-4832-ab7f-d83660470d43', 'RUN', '50f15a1c-979b-43a0-9ccf-46f8109ba4a6', 'waiting', '50f15a1c-979b-43a0-9ccf-46f8109ba4a6', NULL, NULL);
INSERT INTO event_targets VALUES ('b7a6965e-28f5-488b-a2cf-1dd65465ac9e', 'e3f59175-bdfb-462d-ad84-5efa7565689a', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', '8c7dbbc9-1ec8-4a8d-b558-1158c2d2d4f9', 'waiting-0-0', '50f15a1c-979b-43a0-9ccf-46f8109ba4a6', NULL, NULL);
INSERT INTO event_targets VALUES ('fe8b271e-d47d-4c18-a549-2f56e145a65f', '0c2bf073-bc9e-48a8-bee6-78acfdeca8b3', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', '8c7dbbc9-1ec8-4a8d-b558-1158c2d2d4f9', 'waiting-0-0', '50f15a1c-979b-43a0-9ccf-46f8109ba4a6', NULL, NULL);
INSERT INTO event_targets VALUES ('a9f8233f-106c-4850-9fef-2dc87a518429', '0332b5ca-962e-4840-b604-c64f5b308a28', '9e800fa7-b208-4832-ab7f-d83660470d43', 'JOB', '8c7dbbc9-1ec8-4a8d-b558-1158c2d2d4f9', 'waiting-0-0', '50f15a1c-979b-43a0-9ccf-46f8109ba4a6', NULL, NULL);
INSERT INTO events VALUES ('eac71e95-9df4-45f6-9ef7-ed2239528aee', 'User created', '2026-11-21 17:16:24.953977', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('7bc54a2f-a86a-4f14-8944-6e1f8abc286e', 'Project created', '2026-11-21 17:16:25.309014', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('a8fe5852-0ad8-46ba-b678-eb849878ebfb', 'User created', '2026-11-21 17:16:43.213754', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('8181e72b-2ff5-4319-93e0-202a3436059f', 'User created', '2026-11-21 17:16:43.333669', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('ea65b250-0a3a-45f3-8d2c-69a40182cb5f', 'User deleted', '2026-11-21 17:16:43.377005', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('7c42d98a-6681-47e2-a4bd-717b2b659756', 'Project created', '2026-11-21 17:16:43.690865', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('8b52f973-c42e-48fe-8a86-d7b19ead1bba', 'Secret created', '2026-11-21 17:16:44.000783', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('d1e3853f-7ac1-4149-9812-d9f4162ab2cc', 'Public key added. Fingerprint: SHA256:8ePxxrCNbqUFETnu0N4tpVj1nJR+tnYyyISWxbh23YE', '2026-11-21 17:16:44.240252', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('d0496ee2-6f12-433d-8f12-a53848dcb295', 'Fleet created. Status: ACTIVE', '2026-11-21 17:16:44.307969', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('afafa768-65b4-4d67-ab2d-a111690fb961', 'User created', '2026-11-21 17:17:18.899166', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('7d05f5a6-0ca0-4028-8665-90991a8b4add', 'User deleted', '2026-11-21 17:17:18.974963', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('1d65fce2-997e-4d99-9b49-8aa4a1131d39', 'Fleet created. Status: ACTIVE', '2026-11-21 17:17:19.268199', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('feca375b-052b-4ede-adab-82d82cbcd784', 'Instance created on fleet submission. Status: PENDING', '2026-11-21 17:17:19.270594', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('95af50fe-0d70-43b7-ba17-e06769caa825', 'Run submitted. Status: SUBMITTED', '2026-11-21 17:17:19.314054', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('27a809bb-1093-484d-9e86-36607a5d24cf', 'Job created on run submission. Status: SUBMITTED', '2026-11-21 17:17:19.318516', NULL);
INSERT INTO events VALUES ('818c126c-8316-4056-9d8f-e80a0fc0e7c4', 'Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY (Fleet is at capacity)', '2026-11-21 17:17:19.766384', NULL);
INSERT INTO events VALUES ('d142af69-38d7-4710-a13f-3b06772b7ca1', 'Run submitted. Status: SUBMITTED', '2026-11-21 17:17:19.808133', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('73a529f4-68cd-47fc-82bf-104fbc7d5dab', 'Job created on run submission. Status: SUBMITTED', '2026-11-21 17:17:19.823424', NULL);
INSERT INTO events VALUES ('63df8ac2-6860-492e-9ab3-32c69515723a', 'Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY (Fleet is at capacity)', '2026-11-21 17:17:19.969938', NULL);
INSERT INTO events VALUES ('676847df-b2a5-46e9-9778-cadf52912dc1', 'Job status changed TERMINATING -> FAILED', '2026-11-21 17:17:25.805964', NULL);
INSERT INTO events VALUES ('a4219853-51d9-4348-b748-f1b3fff4ae8b', 'Job status changed TERMINATING -> FAILED', '2026-11-21 17:17:25.846671', NULL);
INSERT INTO events VALUES ('999cb0dd-d827-40b0-92a7-58cfa6cb351d', 'Run status changed SUBMITTED -> TERMINATING. Termination reason: JOB_FAILED', '2026-11-21 17:17:29.586327', NULL);
INSERT INTO events VALUES ('be78d544-f437-4669-8178-e7918d039ba0', 'Run status changed SUBMITTED -> TERMINATING. Termination reason: JOB_FAILED', '2026-11-21 17:17:29.624473', NULL);
INSERT INTO events VALUES ('8974b30e-7c5b-4eca-942f-5fb5cd8f4f96', 'Run status changed TERMINATING -> FAILED', '2026-11-21 17:17:39.512777', NULL);
INSERT INTO events VALUES ('7bedb2c4-556d-479e-bc6e-83b88e9fc453', 'Run status changed TERMINATING -> FAILED', '2026-11-21 17:17:39.558014', NULL);
INSERT INTO events VALUES ('750a07dd-eb84-4c19-ae17-a4970480a45a', 'Run submitted. Status: SUBMITTED', '2026-11-21 17:17:58.957941', '1302e644-4663-4c84-97fa-1398315f0eaa');
INSERT INTO events VALUES ('e3f59175-bdfb-462d-ad84-5efa7565689a', 'Job created on run submission. Status: SUBMITTED', '2026-11-21 17:17:58.969545', NULL);
INSERT INTO events VALUES ('0c2bf073-bc9e-48a8-bee6-78acfdeca8b3', 'Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY (Fleet is at capacity)', '2026-11-21 17:17:59.41201', NULL);
INSERT INTO events VALUES ('0332b5ca-962e-4840-b604-c64f5b308a28', 'Job status changed TERMINATING -> FAILED', '2026-11-21 17:18:05.5437', NULL);
INSERT INTO fleets VALUES ('9663b4c1-7dd5-40ca-8622-235d3e79c532', 'elastic', '9e800fa7-b208-4832-ab7f-d83660470d43', '2026-11-21 17:16:44.304751', '2026-11-21 17:17:57.396757', false, NULL, 'ACTIVE', NULL, '{"configuration":{"type":"fleet","name":"elastic","placement":null,"blocks":1,"nodes":{"min":0,"max":2},"reservation":null,"resources":null,"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"spot_policy":null,"retry":null,"max_price":null,"idle_duration":null,"tags":null,"backend_options":null,"ssh_config":null,"env":{}},"configuration_path":null,"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"autocreated":false}', 0, '2026-11-21 17:17:57.396757', NULL, NULL, NULL, NULL);
INSERT INTO fleets VALUES ('c128052f-92c8-4d62-81b8-4da7c0bc1f07', 'hosts', '9e800fa7-b208-4832-ab7f-d83660470d43', '2026-11-21 17:17:19.264666', '2026-11-21 17:17:57.352206', false, NULL, 'ACTIVE', NULL, '{"configuration":{"type":"fleet","name":"hosts","placement":null,"blocks":1,"nodes":null,"reservation":null,"resources":null,"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"spot_policy":null,"retry":null,"max_price":null,"idle_duration":null,"tags":null,"backend_options":null,"ssh_config":{"user":"me","port":null,"identity_file":"x","ssh_key":{"public":"ssh-ed25519 AAAA x","private":"private key of the fleet"},"proxy_jump":null,"hosts":["192.0.2.1"],"network":null},"env":{}},"configuration_path":null,"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"autocreated":false}', 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO instances VALUES ('6e86dafc-a5d7-41b4-a434-3cb956dfc749', 'hosts-0', '2026-11-21 17:17:19.268753', false, NULL, '9e800fa7-b208-4832-ab7f-d83660470d43', NULL, 'PENDING', '2026-11-21 17:17:19.268755', NULL, 'dont-destroy', 0, 'REMOTE', NULL, 'remote', 0, '{"backend":"remote","base_backend":null,"instance_type":{"name":"ssh","resources":{"cpus":2,"memory_mib":8,"gpus":[],"spot":false,"disk":{"size_mib":102400},"cpu_arch":null,"description":""}},"instance_id":"hosts-0","hostname":"192.0.2.1","internal_ip":null,"public_ip_enabled":true,"instance_network":null,"region":"remote","availability_zone":null,"reservation":null,"price":0.0,"username":"me","ssh_port":22,"dockerized":true,"ssh_proxy":null,"backend_data":"","gpu_driver":null}', '{"backend":"remote","instance":{"name":"ssh","resources":{"cpus":2,"memory_mib":8,"gpus":[],"spot":false,"disk":{"size_mib":102400},"cpu_arch":null,"description":""}},"region":"remote","price":0.0,"backend_data":{},"availability":"available","availability_zones":null,"instance_runtime":"shim","blocks":1,"total_blocks":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"host":"192.0.2.1","port":22,"ssh_user":"me","ssh_keys":[{"public":"ssh-ed25519 AAAA x","private":"private key of the fleet"}],"ssh_proxy":null,"ssh_proxy_keys":null,"env":{}}', false, 0, 'c128052f-92c8-4d62-81b8-4da7c0bc1f07', '2026-11-21 17:18:06.929448', NULL, NULL, 1, 0, 'HEALTHY', NULL, NULL, NULL, NULL, NULL, NULL, false);
INSERT INTO jobs VALUES ('c056de45-16ab-4636-ba41-404bb48c5cfd', '9e800fa7-b208-4832-ab7f-d83660470d43', '41843b66-2982-426e-8e1e-736cd3067ee9', 'finished', 0, 'finished-0-0', 0, '2026-11-21 17:17:19.315544', '2026-11-21 17:17:25.771582', 'FAILED', 'FAILED_TO_START_DUE_TO_NO_CAPACITY', '{"replica_num":0,"job_num":0,"job_name":"finished-0-0","jobs_per_replica":1,"replica_group":"0","app_specs":[],"user":null,"commands":["/bin/bash","-i","-c","eval $(echo ''export DSTACK_VENV_DIR=/dstack/venv'' | sudo tee -a /dstack/profile) && sudo rm -rf $DSTACK_VENV_DIR && sudo mkdir $DSTACK_VENV_DIR && sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR && (if UV_PYTHON_INSTALL_DIR=/opt/uv/python uv python find 3.11 > /dev/null 2>&1; then export UV_PYTHON_INSTALL_DIR=/opt/uv/python UV_PYTHON_DOWNLOADS=never; fi; uv venv -q --prompt dstack -p 3.11 --seed $DSTACK_VENV_DIR) && eval $(echo ''. $DSTACK_VENV_DIR/bin/activate'' | sudo tee -a /dstack/profile) && echo hello"],"env":{"A":"b"},"home_dir":"/root","image_name":"dstackai/base:0.16-base-ubuntu24.04","privileged":false,"single_branch":true,"max_duration":null,"stop_duration":300,"utilization_policy":null,"registry_auth":null,"requirements":{"resources":{"cpu":{"arch":"x86","count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"max_price":null,"spot":false,"reservation":null,"multinode":false,"backend_options":null},"retry":null,"volumes":[],"ssh_key":null,"working_dir":null,"repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":"/workflow","repo_exists_action":null,"file_archives":[],"service_port":null,"probes":[],"node_group_index":0,"node_group_name":"0","node_group_job_index":0}', NULL, NULL, NULL, NULL, 0, 'Fleet is at capacity', false, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, NULL, false, NULL, NULL, NULL, NULL, NULL, false, false, NULL);
INSERT INTO jobs VALUES ('c724ac43-1cf2-4b35-97a9-92294b336e4f', '9e800fa7-b208-4832-ab7f-d83660470d43', '5591f530-5e47-45d8-a123-004ec940f1e4', 'second', 0, 'second-0-0', 0, '2026-11-21 17:17:19.808918', '2026-11-21 17:17:25.784865', 'FAILED', 'FAILED_TO_START_DUE_TO_NO_CAPACITY', '{"replica_num":0,"job_num":0,"job_name":"second-0-0","jobs_per_replica":1,"replica_group":"0","app_specs":[],"user":null,"commands":["/bin/bash","-i","-c","eval $(echo ''export DSTACK_VENV_DIR=/dstack/venv'' | sudo tee -a /dstack/profile) && sudo rm -rf $DSTACK_VENV_DIR && sudo mkdir $DSTACK_VENV_DIR && sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR && (if UV_PYTHON_INSTALL_DIR=/opt/uv/python uv python find 3.11 > /dev/null 2>&1; then export UV_PYTHON_INSTALL_DIR=/opt/uv/python UV_PYTHON_DOWNLOADS=never; fi; uv venv -q --prompt dstack -p 3.11 --seed $DSTACK_VENV_DIR) && eval $(echo ''. $DSTACK_VENV_DIR/bin/activate'' | sudo tee -a /dstack/profile) && echo hello"],"env":{"A":"b"},"home_dir":"/root","image_name":"dstackai/base:0.16-base-ubuntu24.04","privileged":false,"single_branch":true,"max_duration":null,"stop_duration":300,"utilization_policy":null,"registry_auth":null,"requirements":{"resources":{"cpu":{"arch":"x86","count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"max_price":null,"spot":false,"reservation":null,"multinode":false,"backend_options":null},"retry":null,"volumes":[],"ssh_key":null,"working_dir":null,"repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":"/workflow","repo_exists_action":null,"file_archives":[],"service_port":null,"probes":[],"node_group_index":0,"node_group_name":"0","node_group_job_index":0}', NULL, NULL, NULL, NULL, 0, 'Fleet is at capacity', false, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, NULL, false, NULL, NULL, NULL, NULL, NULL, false, false, NULL);
INSERT INTO jobs VALUES ('8c7dbbc9-1ec8-4a8d-b558-1158c2d2d4f9', '9e800fa7-b208-4832-ab7f-d83660470d43', '50f15a1c-979b-43a0-9ccf-46f8109ba4a6', 'waiting', 0, 'waiting-0-0', 0, '2026-11-21 17:17:58.967114', '2026-11-21 17:18:05.532715', 'FAILED', 'FAILED_TO_START_DUE_TO_NO_CAPACITY', '{"replica_num":0,"job_num":0,"job_name":"waiting-0-0","jobs_per_replica":1,"replica_group":"0","app_specs":[],"user":null,"commands":["/bin/bash","-i","-c","eval $(echo ''export DSTACK_VENV_DIR=/dstack/venv'' | sudo tee -a /dstack/profile) && sudo rm -rf $DSTACK_VENV_DIR && sudo mkdir $DSTACK_VENV_DIR && sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR && (if UV_PYTHON_INSTALL_DIR=/opt/uv/python uv python find 3.11 > /dev/null 2>&1; then export UV_PYTHON_INSTALL_DIR=/opt/uv/python UV_PYTHON_DOWNLOADS=never; fi; uv venv -q --prompt dstack -p 3.11 --seed $DSTACK_VENV_DIR) && eval $(echo ''. $DSTACK_VENV_DIR/bin/activate'' | sudo tee -a /dstack/profile) && echo hello"],"env":{},"home_dir":"/root","image_name":"dstackai/base:0.16-base-ubuntu24.04","privileged":false,"single_branch":true,"max_duration":null,"stop_duration":300,"utilization_policy":null,"registry_auth":null,"requirements":{"resources":{"cpu":{"arch":"x86","count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"max_price":null,"spot":false,"reservation":null,"multinode":false,"backend_options":null},"retry":{"on_events":["no-capacity"],"duration":86400},"volumes":[],"ssh_key":null,"working_dir":null,"repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":"/workflow","repo_exists_action":null,"file_archives":[],"service_port":null,"probes":[],"node_group_index":0,"node_group_name":"0","node_group_job_index":0}', NULL, NULL, NULL, NULL, 0, 'Fleet is at capacity', false, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, NULL, false, NULL, NULL, NULL, NULL, NULL, false, false, NULL);
INSERT INTO members VALUES ('a0937ad6-082f-4096-8520-c466320abc7f', '9e800fa7-b208-4832-ab7f-d83660470d43', '1302e644-4663-4c84-97fa-1398315f0eaa', 'ADMIN', 0);
INSERT INTO members VALUES ('80cebe2d-d783-457f-867d-91dec2b8eabe', '2df5182a-a431-4fec-be6d-a3d91628f157', '1302e644-4663-4c84-97fa-1398315f0eaa', 'ADMIN', 0);
INSERT INTO members VALUES ('0d247e82-a19a-4c2c-ba0e-0ecc070ac956', '2df5182a-a431-4fec-be6d-a3d91628f157', '5af8011d-1e3b-4150-ae7d-8762bf652e7d', 'MANAGER', NULL);
INSERT INTO projects VALUES ('9e800fa7-b208-4832-ab7f-d83660470d43', 'main', 'private key of main', 'ssh-rsa AAAA main', NULL, '1302e644-4663-4c84-97fa-1398315f0eaa', false, NULL, '2026-11-21 17:16:25.326414', false, NULL, NULL);
INSERT INTO projects VALUES ('2df5182a-a431-4fec-be6d-a3d91628f157', 'team', 'private key of team', 'ssh-rsa AAAA team', NULL, '1302e644-4663-4c84-97fa-1398315f0eaa', false, NULL, '2026-11-21 17:16:43.693041', false, NULL, NULL);
INSERT INTO repo_creds VALUES ('abee6b15-8e19-46d9-88d8-f08e66695f4a', '2917e9d4-27ba-4332-9a6e-172ebd566ce2', '1302e644-4663-4c84-97fa-1398315f0eaa', 'enc:aes:k1:2k5ezAplMy8ypXuZaTBEO63yO+HakO/FUQKw8uJ87sEgQj8UQKG1Jra7WxN6eXJansaUBoUlzNbfNFahwDfwIZ8nzZm7TxVMZL9WcOpkPiTYqRlLLKhU4etn+6lkwc3r5ZpUiYt7Tabb5X74IXLyyOnAjHddGNuPxUXf');
INSERT INTO repos VALUES ('2917e9d4-27ba-4332-9a6e-172ebd566ce2', '9e800fa7-b208-4832-ab7f-d83660470d43', 'repo', 'REMOTE', '{"repo_type":"remote","repo_name":"https://example.invalid/x.git"}', NULL);
INSERT INTO repos VALUES ('28a2f60d-635e-440c-aa35-2160e5edfc22', '9e800fa7-b208-4832-ab7f-d83660470d43', 'none', 'VIRTUAL', '{"repo_type":"virtual"}', NULL);
INSERT INTO runs VALUES ('41843b66-2982-426e-8e1e-736cd3067ee9', '9e800fa7-b208-4832-ab7f-d83660470d43', '28a2f60d-635e-440c-aa35-2160e5edfc22', '1302e644-4663-4c84-97fa-1398315f0eaa', '2026-11-21 17:17:19.311501', 'finished', 'FAILED', '{"run_name":"finished","repo_id":"none","repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":null,"file_archives":[],"working_dir":null,"configuration_path":null,"configuration":{"nodes":1,"groups":null,"ports":[],"commands":["echo hello"],"type":"task","name":"finished","image":null,"user":null,"privileged":false,"entrypoint":null,"working_dir":null,"home_dir":"/root","registry_auth":null,"python":null,"nvcc":null,"single_branch":null,"env":{"A":"b"},"shell":null,"resources":{"cpu":{"arch":null,"count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"priority":0,"volumes":[],"docker":null,"repos":[],"files":[],"dstack":false,"setup":[],"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null},"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"ssh_key_pub":"ssh-ed25519 AAAA x"}', false, '2026-11-21 17:17:39.491542', NULL, 'JOB_FAILED', NULL, NULL, 0, 0, 0, 1, NULL, NULL, NULL, NULL, NULL, false);
INSERT INTO runs VALUES ('5591f530-5e47-45d8-a123-004ec940f1e4', '9e800fa7-b208-4832-ab7f-d83660470d43', '28a2f60d-635e-440c-aa35-2160e5edfc22', '1302e644-4663-4c84-97fa-1398315f0eaa', '2026-11-21 17:17:19.805536', 'second', 'FAILED', '{"run_name":"second","repo_id":"none","repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":null,"file_archives":[],"working_dir":null,"configuration_path":null,"configuration":{"nodes":1,"groups":null,"ports":[],"commands":["echo hello"],"type":"task","name":"second","image":null,"user":null,"privileged":false,"entrypoint":null,"working_dir":null,"home_dir":"/root","registry_auth":null,"python":null,"nvcc":null,"single_branch":null,"env":{"A":"b"},"shell":null,"resources":{"cpu":{"arch":null,"count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"priority":0,"volumes":[],"docker":null,"repos":[],"files":[],"dstack":false,"setup":[],"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null},"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"ssh_key_pub":"ssh-ed25519 AAAA x"}', false, '2026-11-21 17:17:39.548331', NULL, 'JOB_FAILED', NULL, NULL, 0, 0, 0, 1, NULL, NULL, NULL, NULL, NULL, false);
INSERT INTO runs VALUES ('50f15a1c-979b-43a0-9ccf-46f8109ba4a6', '9e800fa7-b208-4832-ab7f-d83660470d43', '28a2f60d-635e-440c-aa35-2160e5edfc22', '1302e644-4663-4c84-97fa-1398315f0eaa', '2026-11-21 17:17:58.955188', 'waiting', 'SUBMITTED', '{"run_name":"waiting","repo_id":"none","repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":null,"file_archives":[],"working_dir":null,"configuration_path":null,"configuration":{"nodes":1,"groups":null,"ports":[],"commands":["echo hello"],"type":"task","name":"waiting","image":null,"user":null,"privileged":false,"entrypoint":null,"working_dir":null,"home_dir":"/root","registry_auth":null,"python":null,"nvcc":null,"single_branch":null,"env":{},"shell":null,"resources":{"cpu":{"arch":null,"count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"priority":0,"volumes":[],"docker":null,"repos":[],"files":[],"dstack":false,"setup":[],"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":{"on_events":["no-capacity"],"duration":86400},"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null},"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"ssh_key_pub":"ssh-ed25519 AAAA x"}', false, '2026-11-21 17:17:59.311648', NULL, NULL, NULL, NULL, 0, 0, 0, 1, NULL, NULL, NULL, NULL, 'RunPipeline', false);
INSERT INTO secrets VALUES ('4de5c3ac-a315-4ddb-915b-31fcb9a400f5', '2df5182a-a431-4fec-be6d-a3d91628f157', '2026-11-21 17:16:44.004168', '2026-11-21 17:16:44.004174', 'S', 'enc:aes:k1:lldAO6v5dreO1ZIVkFZ6JM/lMw8lkyCBUcUkhqtAImw6gBfJWBZx8ErJ1MFuyfyLnQ==');
INSERT INTO user_public_keys VALUES ('bc7a556b-b0df-47fc-b66f-eb9decd3cdcc', '2026-11-21 17:16:44.236471', '1302e644-4663-4c84-97fa-1398315f0eaa', 'me@here', 'ssh-ed25519', 'SHA256:8ePxxrCNbqUFETnu0N4tpVj1nJR+tnYyyISWxbh23YE', 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJZCqKJ4Wjjx4bWIhlFyJj5WVwKCYsXY7n5fJ3v3Pp0X me@here');
INSERT INTO users VALUES ('1302e644-4663-4c84-97fa-1398315f0eaa', 'admin', 'enc:aes:k1:DS3aCn7ipLLJuLVhCCicUywUQTdIPs8TdiythzE/RUDmIDb1HzNQoO0UhRJ2kq6m', 'ADMIN', 10, NULL, '6d051bd8a813ea041dbc70424a755be23781f2840b8979c52cc0326ba4c10dad', true, '2026-11-21 17:16:25.006603', 'private key of admin', 'ssh-rsa AAAA admin
', false, NULL);
INSERT INTO users VALUES ('5af8011d-1e3b-4150-ae7d-8762bf652e7d', 'alice', 'enc:aes:k1:bESx/Nc7IT8J3uSCAyGASOtz6B2yNz70XchWNQkBahcEpxE4ggesZLnGU1QjvRMlCUEIH6PFajN6HqcIejxiDw==', 'USER', 10, 'alice@example.com', '36422c3df72d16dcea2e31ff1abc8828b1eb0caefb187a2faf7f5184896f9fc3', true, '2026-11-21 17:16:43.21903', 'private key of alice', 'ssh-rsa AAAA alice
', false, NULL);
INSERT INTO users VALUES ('b770a3e5-a111-4134-8a3e-760a81aac7a0', '_deleted_1795281403_95e23d5072b50a72', 'enc:aes:k1:3X1oCgG86f9nT4wqS6H70w0GZ4WGeereCpvtBWpTayDlzkcUdXV0/b6/PC9AayYaphPFgIdqHJn0ym4J7hz9eA==', 'USER', 10, NULL, '6ff9b5b9b50b1cafae8f2745920eee232ab6ec42bbb2ce4fc97b736ac487d9cd', false, '2026-11-21 17:16:43.346795', 'private key of _deleted_1795281403_95e23d5072b50a72', 'ssh-rsa AAAA _deleted_1795281403_95e23d5072b50a72
', true, 'gone');
INSERT INTO users VALUES ('da915711-04ec-4381-9bac-87325369c918', '_deleted_1795281438_7302df77d2e3fb67', 'enc:aes:k1:tpbB7xZmSxwLz09kWfxHkIZlkCeElqQv3E2LZRSDF564uvDTRrYoSqjHyGBsxY3WIRREQOy5tWMLAKmXIf3rAg==', 'USER', 10, NULL, '85c8ce9a316ae22763f8ae05b86574c1adefc549c697d8bea6a846b4d2e865db', false, '2026-11-21 17:17:18.900997', 'private key of _deleted_1795281438_7302df77d2e3fb67', 'ssh-rsa AAAA _deleted_1795281438_7302df77d2e3fb67
', true, 'gone');
