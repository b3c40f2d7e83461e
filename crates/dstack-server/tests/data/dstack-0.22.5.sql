-- A database of dstack 0.22.5, made by the program itself: its tokens and secrets are encrypted with the key k1 (32 bytes 7)
-- but for the backend's, which are not; the SSH keys were replaced.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('40f19bea9d2a');
CREATE TABLE "backends" (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	type VARCHAR(100) NOT NULL, 
	config VARCHAR(20000) NOT NULL, 
	auth VARCHAR(20000) NOT NULL, source_config VARCHAR(20000), source_auth VARCHAR(20000), 
	CONSTRAINT pk_backends PRIMARY KEY (id), 
	CONSTRAINT fk_backends_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "backends" VALUES('5f0d3a5c-0000-4000-8000-000000000001','2df5182aa4314fecbe6da3d91628f157','RUNPOD','{"type":"runpod","regions":null,"community_cloud":null}','enc:identity:noname:{"type":"api_key","api_key":"imported-api-key"}',NULL,NULL);
CREATE TABLE "codes" (
	id CHAR(32) NOT NULL, 
	repo_id CHAR(32) NOT NULL, 
	blob_hash VARCHAR(4000) NOT NULL, 
	blob BLOB, 
	CONSTRAINT pk_codes PRIMARY KEY (id), 
	CONSTRAINT fk_codes_repo_id_repos FOREIGN KEY(repo_id) REFERENCES repos (id) ON DELETE CASCADE, 
	CONSTRAINT uq_codes_repo_id_blob_hash UNIQUE (repo_id, blob_hash)
);
CREATE TABLE compute_groups (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	fleet_id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	status VARCHAR(100) NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	deleted_at DATETIME, 
	provisioning_data TEXT NOT NULL, 
	first_termination_retry_at DATETIME, 
	last_termination_retry_at DATETIME, lock_expires_at DATETIME, lock_token CHAR(32), lock_owner VARCHAR(100), 
	CONSTRAINT pk_compute_groups PRIMARY KEY (id), 
	CONSTRAINT fk_compute_groups_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id), 
	CONSTRAINT fk_compute_groups_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE TABLE "event_targets" (
	id CHAR(32) NOT NULL, 
	event_id CHAR(32) NOT NULL, 
	entity_project_id CHAR(32), 
	entity_type VARCHAR(100) NOT NULL, 
	entity_id CHAR(32) NOT NULL, 
	entity_name VARCHAR(200) NOT NULL, 
	entity_run_id CHAR(32), 
	entity_fleet_id CHAR(32), entity_gateway_id CHAR(32), 
	CONSTRAINT pk_event_targets PRIMARY KEY (id), 
	CONSTRAINT fk_event_targets_entity_project_id_projects FOREIGN KEY(entity_project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT fk_event_targets_entity_run_id_runs FOREIGN KEY(entity_run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_event_targets_event_id_events FOREIGN KEY(event_id) REFERENCES events (id) ON DELETE CASCADE, 
	CONSTRAINT fk_event_targets_entity_fleet_id_fleets FOREIGN KEY(entity_fleet_id) REFERENCES fleets (id) ON DELETE CASCADE
);
INSERT INTO "event_targets" VALUES('e134874749b247c387a9e7a3e0b234ea','eac71e959df445f69ef7ed2239528aee',NULL,'USER','1302e64446634c8497fa1398315f0eaa','admin',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('39f50caf0b424c7886c57de69b198498','7bc54a2fa86a4f1489446e1f8abc286e','9e800fa7b2084832ab7fd83660470d43','PROJECT','9e800fa7b2084832ab7fd83660470d43','main',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('a5479de3a96941beb0b130c83dde2271','a8fe58520ad846bab678eb849878ebfb',NULL,'USER','5af8011d1e3b4150ae7d8762bf652e7d','alice',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('8fc0ea6dbcbe44a5b69108a1b413d386','8181e72b2ff5431993e0202a3436059f',NULL,'USER','b770a3e5a11141348a3e760a81aac7a0','gone',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('cee43cb6a544487db1006b260ab75591','ea65b2500a3a45f38d2c69a40182cb5f',NULL,'USER','b770a3e5a11141348a3e760a81aac7a0','gone',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('e13d6697228042609f70838a7ff113f6','7c42d98a668147e2a4bd717b2b659756','2df5182aa4314fecbe6da3d91628f157','PROJECT','2df5182aa4314fecbe6da3d91628f157','team',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('e343311c9a364881a6660cb73f0cbe4a','8b52f973c42e48fe8a86d7b19ead1bba','2df5182aa4314fecbe6da3d91628f157','SECRET','4de5c3aca3154ddb915b31fcb9a400f5','S',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('13577cc74a0f405690f6260e33389248','d1e3853f7ac141499812d9f4162ab2cc',NULL,'USER','1302e64446634c8497fa1398315f0eaa','admin',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('e38a8248f3c64aeda8e129b468c02d78','d0496ee26f12433d8f12a53848dcb295','9e800fa7b2084832ab7fd83660470d43','FLEET','9663b4c17dd540ca8622235d3e79c532','elastic',NULL,'9663b4c17dd540ca8622235d3e79c532',NULL);
INSERT INTO "event_targets" VALUES('dc8761e4987e4c9e9f772acf90aebb29','afafa76865b44d67ab2da111690fb961',NULL,'USER','da91571104ec43819bac87325369c918','gone',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('a7ce873ed84a4989862f0c50c6b7f9d3','7d05f5a60ca04028866590991a8b4add',NULL,'USER','da91571104ec43819bac87325369c918','gone',NULL,NULL,NULL);
INSERT INTO "event_targets" VALUES('ab768dea27e34074867b70e01ab5bfc8','1d65fce2997e4d999b498aa4a1131d39','9e800fa7b2084832ab7fd83660470d43','FLEET','c128052f92c84d6281b84da7c0bc1f07','hosts',NULL,'c128052f92c84d6281b84da7c0bc1f07',NULL);
INSERT INTO "event_targets" VALUES('484a9f8a89f94b39acae83847a08590c','feca375b052b4edeadab82d82cbcd784','9e800fa7b2084832ab7fd83660470d43','INSTANCE','6e86dafca5d741b4a4343cb956dfc749','hosts-0',NULL,'c128052f92c84d6281b84da7c0bc1f07',NULL);
INSERT INTO "event_targets" VALUES('faf4986b5c7e4313a4433649aaf500a6','95af50fe0d7043b7ba17e06769caa825','9e800fa7b2084832ab7fd83660470d43','RUN','41843b662982426e8e1e736cd3067ee9','finished','41843b662982426e8e1e736cd3067ee9',NULL,NULL);
INSERT INTO "event_targets" VALUES('68b664394d39401f9a6d8c95a272c6c4','27a809bb1093484d9e8636607a5d24cf','9e800fa7b2084832ab7fd83660470d43','JOB','c056de4516ab4636ba41404bb48c5cfd','finished-0-0','41843b662982426e8e1e736cd3067ee9',NULL,NULL);
INSERT INTO "event_targets" VALUES('6c75fbbaab434821b9c24cd19f7f4c47','818c126c831640569d8fe80a0fc0e7c4','9e800fa7b2084832ab7fd83660470d43','JOB','c056de4516ab4636ba41404bb48c5cfd','finished-0-0','41843b662982426e8e1e736cd3067ee9',NULL,NULL);
INSERT INTO "event_targets" VALUES('7425f4dfc6084284be99d7f487f07fd2','d142af6938d74710a13f3b06772b7ca1','9e800fa7b2084832ab7fd83660470d43','RUN','5591f5305e4745d8a123004ec940f1e4','second','5591f5305e4745d8a123004ec940f1e4',NULL,NULL);
INSERT INTO "event_targets" VALUES('a0c0c79b681940bbb93a94b90b03914d','73a529f468cd47fc82bf104fbc7d5dab','9e800fa7b2084832ab7fd83660470d43','JOB','c724ac431cf24b3597a992294b336e4f','second-0-0','5591f5305e4745d8a123004ec940f1e4',NULL,NULL);
INSERT INTO "event_targets" VALUES('5bbb0fd67ae04d118ff78a5ab42f9adb','63df8ac26860492e9ab332c69515723a','9e800fa7b2084832ab7fd83660470d43','JOB','c724ac431cf24b3597a992294b336e4f','second-0-0','5591f5305e4745d8a123004ec940f1e4',NULL,NULL);
INSERT INTO "event_targets" VALUES('f6833f1b79214a4a8a20830d671dbfd9','676847dfb2a546e99778cadf52912dc1','9e800fa7b2084832ab7fd83660470d43','JOB','c056de4516ab4636ba41404bb48c5cfd','finished-0-0','41843b662982426e8e1e736cd3067ee9',NULL,NULL);
INSERT INTO "event_targets" VALUES('e88ac01f86e047e1a873b23bbc1d9e79','a421985351d94348b748f1b3fff4ae8b','9e800fa7b2084832ab7fd83660470d43','JOB','c724ac431cf24b3597a992294b336e4f','second-0-0','5591f5305e4745d8a123004ec940f1e4',NULL,NULL);
INSERT INTO "event_targets" VALUES('23ba37df3d5045709979a693b05fd6a1','999cb0ddd82740b092a758cfa6cb351d','9e800fa7b2084832ab7fd83660470d43','RUN','41843b662982426e8e1e736cd3067ee9','finished','41843b662982426e8e1e736cd3067ee9',NULL,NULL);
INSERT INTO "event_targets" VALUES('8fe921dbe35a4243956781c49e85c147','be78d544f43746698178e7918d039ba0','9e800fa7b2084832ab7fd83660470d43','RUN','5591f5305e4745d8a123004ec940f1e4','second','5591f5305e4745d8a123004ec940f1e4',NULL,NULL);
INSERT INTO "event_targets" VALUES('dde02415f1034128acf67a3790636121','8974b30e7c5b4eca942f5fb5cd8f4f96','9e800fa7b2084832ab7fd83660470d43','RUN','41843b662982426e8e1e736cd3067ee9','finished','41843b662982426e8e1e736cd3067ee9',NULL,NULL);
INSERT INTO "event_targets" VALUES('c6793f1163134b62b8bb33454d3f3f46','7bedb2c4556d479ebc6e83b88e9fc453','9e800fa7b2084832ab7fd83660470d43','RUN','5591f5305e4745d8a123004ec940f1e4','second','5591f5305e4745d8a123004ec940f1e4',NULL,NULL);
INSERT INTO "event_targets" VALUES('42f59654f8cd4b03b9ff9831a8a3b0ff','750a07ddeb844c19ae17a4970480a45a','9e800fa7b2084832ab7fd83660470d43','RUN','50f15a1c979b43a09ccf46f8109ba4a6','waiting','50f15a1c979b43a09ccf46f8109ba4a6',NULL,NULL);
INSERT INTO "event_targets" VALUES('b7a6965e28f5488ba2cf1dd65465ac9e','e3f59175bdfb462dad845efa7565689a','9e800fa7b2084832ab7fd83660470d43','JOB','8c7dbbc91ec84a8db5581158c2d2d4f9','waiting-0-0','50f15a1c979b43a09ccf46f8109ba4a6',NULL,NULL);
INSERT INTO "event_targets" VALUES('fe8b271ed47d4c18a5492f56e145a65f','0c2bf073bc9e48a8bee678acfdeca8b3','9e800fa7b2084832ab7fd83660470d43','JOB','8c7dbbc91ec84a8db5581158c2d2d4f9','waiting-0-0','50f15a1c979b43a09ccf46f8109ba4a6',NULL,NULL);
INSERT INTO "event_targets" VALUES('a9f8233f106c48509fef2dc87a518429','0332b5ca962e4840b604c64f5b308a28','9e800fa7b2084832ab7fd83660470d43','JOB','8c7dbbc91ec84a8db5581158c2d2d4f9','waiting-0-0','50f15a1c979b43a09ccf46f8109ba4a6',NULL,NULL);
CREATE TABLE events (
	id CHAR(32) NOT NULL, 
	message TEXT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	actor_user_id CHAR(32), 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_actor_user_id_users FOREIGN KEY(actor_user_id) REFERENCES users (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES('eac71e959df445f69ef7ed2239528aee','User created','2026-11-21 17:16:24.953977','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('7bc54a2fa86a4f1489446e1f8abc286e','Project created','2026-11-21 17:16:25.309014','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('a8fe58520ad846bab678eb849878ebfb','User created','2026-11-21 17:16:43.213754','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('8181e72b2ff5431993e0202a3436059f','User created','2026-11-21 17:16:43.333669','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('ea65b2500a3a45f38d2c69a40182cb5f','User deleted','2026-11-21 17:16:43.377005','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('7c42d98a668147e2a4bd717b2b659756','Project created','2026-11-21 17:16:43.690865','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('8b52f973c42e48fe8a86d7b19ead1bba','Secret created','2026-11-21 17:16:44.000783','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('d1e3853f7ac141499812d9f4162ab2cc','Public key added. Fingerprint: SHA256:8ePxxrCNbqUFETnu0N4tpVj1nJR+tnYyyISWxbh23YE','2026-11-21 17:16:44.240252','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('d0496ee26f12433d8f12a53848dcb295','Fleet created. Status: ACTIVE','2026-11-21 17:16:44.307969','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('afafa76865b44d67ab2da111690fb961','User created','2026-11-21 17:17:18.899166','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('7d05f5a60ca04028866590991a8b4add','User deleted','2026-11-21 17:17:18.974963','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('1d65fce2997e4d999b498aa4a1131d39','Fleet created. Status: ACTIVE','2026-11-21 17:17:19.268199','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('feca375b052b4edeadab82d82cbcd784','Instance created on fleet submission. Status: PENDING','2026-11-21 17:17:19.270594','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('95af50fe0d7043b7ba17e06769caa825','Run submitted. Status: SUBMITTED','2026-11-21 17:17:19.314054','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('27a809bb1093484d9e8636607a5d24cf','Job created on run submission. Status: SUBMITTED','2026-11-21 17:17:19.318516',NULL);
INSERT INTO "events" VALUES('818c126c831640569d8fe80a0fc0e7c4','Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY (Fleet is at capacity)','2026-11-21 17:17:19.766384',NULL);
INSERT INTO "events" VALUES('d142af6938d74710a13f3b06772b7ca1','Run submitted. Status: SUBMITTED','2026-11-21 17:17:19.808133','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('73a529f468cd47fc82bf104fbc7d5dab','Job created on run submission. Status: SUBMITTED','2026-11-21 17:17:19.823424',NULL);
INSERT INTO "events" VALUES('63df8ac26860492e9ab332c69515723a','Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY (Fleet is at capacity)','2026-11-21 17:17:19.969938',NULL);
INSERT INTO "events" VALUES('676847dfb2a546e99778cadf52912dc1','Job status changed TERMINATING -> FAILED','2026-11-21 17:17:25.805964',NULL);
INSERT INTO "events" VALUES('a421985351d94348b748f1b3fff4ae8b','Job status changed TERMINATING -> FAILED','2026-11-21 17:17:25.846671',NULL);
INSERT INTO "events" VALUES('999cb0ddd82740b092a758cfa6cb351d','Run status changed SUBMITTED -> TERMINATING. Termination reason: JOB_FAILED','2026-11-21 17:17:29.586327',NULL);
INSERT INTO "events" VALUES('be78d544f43746698178e7918d039ba0','Run status changed SUBMITTED -> TERMINATING. Termination reason: JOB_FAILED','2026-11-21 17:17:29.624473',NULL);
INSERT INTO "events" VALUES('8974b30e7c5b4eca942f5fb5cd8f4f96','Run status changed TERMINATING -> FAILED','2026-11-21 17:17:39.512777',NULL);
INSERT INTO "events" VALUES('7bedb2c4556d479ebc6e83b88e9fc453','Run status changed TERMINATING -> FAILED','2026-11-21 17:17:39.558014',NULL);
INSERT INTO "events" VALUES('750a07ddeb844c19ae17a4970480a45a','Run submitted. Status: SUBMITTED','2026-11-21 17:17:58.957941','1302e64446634c8497fa1398315f0eaa');
INSERT INTO "events" VALUES('e3f59175bdfb462dad845efa7565689a','Job created on run submission. Status: SUBMITTED','2026-11-21 17:17:58.969545',NULL);
INSERT INTO "events" VALUES('0c2bf073bc9e48a8bee678acfdeca8b3','Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY (Fleet is at capacity)','2026-11-21 17:17:59.412010',NULL);
INSERT INTO "events" VALUES('0332b5ca962e4840b604c64f5b308a28','Job status changed TERMINATING -> FAILED','2026-11-21 17:18:05.543700',NULL);
CREATE TABLE exported_fleets (
	id CHAR(32) NOT NULL, 
	export_id CHAR(32) NOT NULL, 
	fleet_id CHAR(32) NOT NULL, 
	CONSTRAINT pk_exported_fleets PRIMARY KEY (id), 
	CONSTRAINT fk_exported_fleets_export_id_exports FOREIGN KEY(export_id) REFERENCES exports (id) ON DELETE CASCADE, 
	CONSTRAINT fk_exported_fleets_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id) ON DELETE CASCADE, 
	CONSTRAINT uq_exported_fleets_export_id_fleet_id UNIQUE (export_id, fleet_id)
);
CREATE TABLE exported_gateways (
	id CHAR(32) NOT NULL, 
	export_id CHAR(32) NOT NULL, 
	gateway_id CHAR(32) NOT NULL, 
	CONSTRAINT pk_exported_gateways PRIMARY KEY (id), 
	CONSTRAINT fk_exported_gateways_export_id_exports FOREIGN KEY(export_id) REFERENCES exports (id) ON DELETE CASCADE, 
	CONSTRAINT fk_exported_gateways_gateway_id_gateways FOREIGN KEY(gateway_id) REFERENCES gateways (id) ON DELETE CASCADE, 
	CONSTRAINT uq_exported_gateways_export_id_gateway_id UNIQUE (export_id, gateway_id)
);
CREATE TABLE "exports" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	is_global BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_exports PRIMARY KEY (id), 
	CONSTRAINT fk_exports_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT uq_exports_project_id_name UNIQUE (project_id, name)
);
CREATE TABLE file_archives (
	id CHAR(32) NOT NULL, 
	user_id CHAR(32) NOT NULL, 
	blob_hash TEXT NOT NULL, 
	blob BLOB, 
	CONSTRAINT pk_file_archives PRIMARY KEY (id), 
	CONSTRAINT fk_file_archives_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_file_archives_user_id_blob_hash UNIQUE (user_id, blob_hash)
);
CREATE TABLE "fleets" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	deleted_at DATETIME, 
	status VARCHAR(100) NOT NULL, 
	status_message TEXT, 
	spec TEXT NOT NULL, consolidation_attempt INTEGER DEFAULT '0' NOT NULL, last_consolidated_at DATETIME, lock_expires_at DATETIME, lock_token CHAR(32), lock_owner VARCHAR(100), current_master_instance_id CHAR(32), 
	CONSTRAINT pk_fleets PRIMARY KEY (id), 
	CONSTRAINT fk_fleets_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "fleets" VALUES('9663b4c17dd540ca8622235d3e79c532','elastic','9e800fa7b2084832ab7fd83660470d43','2026-11-21 17:16:44.304751','2026-11-21 17:17:57.396757',0,NULL,'ACTIVE',NULL,'{"configuration":{"type":"fleet","name":"elastic","placement":null,"blocks":1,"nodes":{"min":0,"max":2},"reservation":null,"resources":null,"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"spot_policy":null,"retry":null,"max_price":null,"idle_duration":null,"tags":null,"backend_options":null,"ssh_config":null,"env":{}},"configuration_path":null,"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"autocreated":false}',0,'2026-11-21 17:17:57.396757',NULL,NULL,NULL,NULL);
INSERT INTO "fleets" VALUES('c128052f92c84d6281b84da7c0bc1f07','hosts','9e800fa7b2084832ab7fd83660470d43','2026-11-21 17:17:19.264666','2026-11-21 17:17:57.352206',0,NULL,'ACTIVE',NULL,'{"configuration":{"type":"fleet","name":"hosts","placement":null,"blocks":1,"nodes":null,"reservation":null,"resources":null,"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"spot_policy":null,"retry":null,"max_price":null,"idle_duration":null,"tags":null,"backend_options":null,"ssh_config":{"user":"me","port":null,"identity_file":"x","ssh_key":{"public":"ssh-ed25519 AAAA x","private":"private key of the fleet"},"proxy_jump":null,"hosts":["192.0.2.1"],"network":null},"env":{}},"configuration_path":null,"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"autocreated":false}',0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE "gateway_computes" (
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	instance_id VARCHAR(100), 
	ip_address VARCHAR(100), 
	region VARCHAR(100), 
	backend_id CHAR(32) NOT NULL, 
	ssh_private_key TEXT NOT NULL, 
	ssh_public_key TEXT NOT NULL, 
	deleted BOOLEAN DEFAULT 0 NOT NULL, 
	active BOOLEAN NOT NULL, 
	hostname VARCHAR(100), 
	configuration TEXT, 
	backend_data TEXT, 
	app_updated_at DATETIME NOT NULL, 
	replica_num INTEGER DEFAULT '0' NOT NULL, 
	gateway_id CHAR(32), 
	last_processed_at DATETIME NOT NULL, 
	status VARCHAR(100) NOT NULL, 
	status_message TEXT, 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	scale_in BOOLEAN DEFAULT 0 NOT NULL, 
	skip_min_processing_interval BOOLEAN DEFAULT 0 NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	CONSTRAINT pk_gateway_computes PRIMARY KEY (id), 
	CONSTRAINT fk_gateway_computes_gateway_id_gateways FOREIGN KEY(gateway_id) REFERENCES gateways (id) ON DELETE SET NULL, 
	CONSTRAINT fk_gateway_computes_backend_id_backends FOREIGN KEY(backend_id) REFERENCES backends (id) ON DELETE CASCADE
);
CREATE TABLE "gateways" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	region VARCHAR(100) NOT NULL, 
	wildcard_domain VARCHAR(100), 
	created_at DATETIME NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	backend_id CHAR(32) NOT NULL, 
	gateway_compute_id CHAR(32), 
	configuration TEXT, 
	status VARCHAR(100) NOT NULL, 
	status_message TEXT, 
	last_processed_at DATETIME NOT NULL, 
	to_be_deleted BOOLEAN DEFAULT 0 NOT NULL, 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	forbid_new_services BOOLEAN DEFAULT 0 NOT NULL, desired_replica_count INTEGER, replica_scale_attempt INTEGER DEFAULT '0' NOT NULL, last_replica_scale_attempt_at DATETIME, last_update_at DATETIME, hostname VARCHAR(255), backend_data TEXT, 
	CONSTRAINT pk_gateways PRIMARY KEY (id), 
	CONSTRAINT fk_gateways_gateway_compute_id_gateway_computes FOREIGN KEY(gateway_compute_id) REFERENCES gateway_computes (id) ON DELETE CASCADE, 
	CONSTRAINT uq_gateways_project_id_name UNIQUE (project_id, name), 
	CONSTRAINT fk_gateways_backend_id_backends FOREIGN KEY(backend_id) REFERENCES backends (id) ON DELETE CASCADE, 
	CONSTRAINT fk_gateways_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE TABLE imports (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	export_id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_imports PRIMARY KEY (id), 
	CONSTRAINT fk_imports_export_id_exports FOREIGN KEY(export_id) REFERENCES exports (id) ON DELETE CASCADE, 
	CONSTRAINT fk_imports_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT uq_imports_project_id_export_id UNIQUE (project_id, export_id)
);
CREATE TABLE instance_health_checks (
	id CHAR(32) NOT NULL, 
	instance_id CHAR(32) NOT NULL, 
	collected_at DATETIME NOT NULL, 
	status VARCHAR(100) NOT NULL, 
	response TEXT NOT NULL, 
	CONSTRAINT pk_instance_health_checks PRIMARY KEY (id), 
	CONSTRAINT fk_instance_health_checks_instance_id_instances FOREIGN KEY(instance_id) REFERENCES instances (id)
);
CREATE TABLE "instances" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(50) NOT NULL, 
	created_at DATETIME NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	deleted_at DATETIME, 
	project_id CHAR(32) NOT NULL, 
	pool_id CHAR(32), 
	status VARCHAR(100) NOT NULL, 
	started_at DATETIME, 
	finished_at DATETIME, 
	termination_policy VARCHAR(100), 
	termination_idle_time INTEGER NOT NULL, 
	backend VARCHAR(100), 
	backend_data TEXT, 
	region VARCHAR(2000), 
	price FLOAT, 
	job_provisioning_data TEXT, 
	offer TEXT, 
	last_job_processed_at DATETIME, 
	termination_deadline DATETIME, 
	termination_reason VARCHAR(4000), 
	health_status VARCHAR(4000), 
	profile TEXT, 
	requirements TEXT, 
	instance_configuration TEXT, 
	last_retry_at DATETIME, 
	remote_connection_info TEXT, 
	unreachable BOOLEAN NOT NULL, 
	instance_num INTEGER NOT NULL, 
	fleet_id CHAR(32), 
	last_processed_at DATETIME NOT NULL, 
	first_termination_retry_at DATETIME, 
	last_termination_retry_at DATETIME, 
	total_blocks INTEGER, 
	busy_blocks INTEGER NOT NULL, 
	health VARCHAR(100) NOT NULL, 
	compute_group_id CHAR(32), 
	termination_reason_message VARCHAR(4000), 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	provisioning_job_id CHAR(32), 
	skip_min_processing_interval BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_instances PRIMARY KEY (id), 
	CONSTRAINT fk_instances_compute_group_id_compute_groups FOREIGN KEY(compute_group_id) REFERENCES compute_groups (id), 
	CONSTRAINT fk_instances_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id), 
	CONSTRAINT fk_instances_pool_id_pools FOREIGN KEY(pool_id) REFERENCES pools (id), 
	CONSTRAINT fk_instances_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "instances" VALUES('6e86dafca5d741b4a4343cb956dfc749','hosts-0','2026-11-21 17:17:19.268753',0,NULL,'9e800fa7b2084832ab7fd83660470d43',NULL,'PENDING','2026-11-21 17:17:19.268755',NULL,'dont-destroy',0,'REMOTE',NULL,'remote',0.0,'{"backend":"remote","base_backend":null,"instance_type":{"name":"ssh","resources":{"cpus":2,"memory_mib":8,"gpus":[],"spot":false,"disk":{"size_mib":102400},"cpu_arch":null,"description":""}},"instance_id":"hosts-0","hostname":"192.0.2.1","internal_ip":null,"public_ip_enabled":true,"instance_network":null,"region":"remote","availability_zone":null,"reservation":null,"price":0.0,"username":"me","ssh_port":22,"dockerized":true,"ssh_proxy":null,"backend_data":"","gpu_driver":null}','{"backend":"remote","instance":{"name":"ssh","resources":{"cpus":2,"memory_mib":8,"gpus":[],"spot":false,"disk":{"size_mib":102400},"cpu_arch":null,"description":""}},"region":"remote","price":0.0,"backend_data":{},"availability":"available","availability_zones":null,"instance_runtime":"shim","blocks":1,"total_blocks":1}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"host":"192.0.2.1","port":22,"ssh_user":"me","ssh_keys":[{"public":"ssh-ed25519 AAAA x","private":"private key of the fleet"}],"ssh_proxy":null,"ssh_proxy_keys":null,"env":{}}',0,0,'c128052f92c84d6281b84da7c0bc1f07','2026-11-21 17:18:06.929448',NULL,NULL,1,0,'HEALTHY',NULL,NULL,NULL,NULL,NULL,NULL,0);
CREATE TABLE job_metrics_points (
	id CHAR(32) NOT NULL, 
	job_id CHAR(32) NOT NULL, 
	timestamp_micro BIGINT NOT NULL, 
	cpu_usage_micro BIGINT NOT NULL, 
	memory_usage_bytes BIGINT NOT NULL, 
	memory_working_set_bytes BIGINT NOT NULL, 
	gpus_memory_usage_bytes TEXT NOT NULL, 
	gpus_util_percent TEXT NOT NULL, 
	CONSTRAINT pk_job_metrics_points PRIMARY KEY (id), 
	CONSTRAINT fk_job_metrics_points_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE job_prometheus_metrics (
	job_id CHAR(32) NOT NULL, 
	collected_at DATETIME NOT NULL, 
	text TEXT NOT NULL, 
	CONSTRAINT pk_job_prometheus_metrics PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_prometheus_metrics_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE "jobs" (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	run_id CHAR(32) NOT NULL, 
	run_name VARCHAR(100) NOT NULL, 
	job_num INTEGER NOT NULL, 
	job_name VARCHAR(100) NOT NULL, 
	submission_num INTEGER NOT NULL, 
	submitted_at DATETIME NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	status VARCHAR(100) NOT NULL, 
	termination_reason VARCHAR(100), 
	job_spec_data TEXT NOT NULL, 
	job_provisioning_data TEXT, 
	runner_timestamp BIGINT, 
	remove_at DATETIME, 
	used_instance_id CHAR(32), 
	replica_num INTEGER NOT NULL, 
	termination_reason_message TEXT, 
	instance_assigned BOOLEAN NOT NULL, 
	job_runtime_data TEXT, 
	volumes_detached_at DATETIME, 
	instance_id CHAR(32), 
	inactivity_secs INTEGER, 
	exit_status INTEGER, 
	disconnected_at DATETIME, 
	deployment_num INTEGER NOT NULL, 
	registered BOOLEAN DEFAULT 0 NOT NULL, 
	fleet_id CHAR(32), 
	waiting_master_job BOOLEAN, 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	graceful_termination_attempts INTEGER, 
	image_pull_progress TEXT, 
	skip_min_processing_interval BOOLEAN DEFAULT 0 NOT NULL, 
	ready BOOLEAN DEFAULT 0 NOT NULL, running_at DATETIME, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_instance_id_instances FOREIGN KEY(instance_id) REFERENCES instances (id) ON DELETE CASCADE, 
	CONSTRAINT fk_jobs_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT fk_jobs_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id), 
	CONSTRAINT fk_jobs_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "jobs" VALUES('c056de4516ab4636ba41404bb48c5cfd','9e800fa7b2084832ab7fd83660470d43','41843b662982426e8e1e736cd3067ee9','finished',0,'finished-0-0',0,'2026-11-21 17:17:19.315544','2026-11-21 17:17:25.771582','FAILED','FAILED_TO_START_DUE_TO_NO_CAPACITY','{"replica_num":0,"job_num":0,"job_name":"finished-0-0","jobs_per_replica":1,"replica_group":"0","app_specs":[],"user":null,"commands":["/bin/bash","-i","-c","eval $(echo ''export DSTACK_VENV_DIR=/dstack/venv'' | sudo tee -a /dstack/profile) && sudo rm -rf $DSTACK_VENV_DIR && sudo mkdir $DSTACK_VENV_DIR && sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR && (if UV_PYTHON_INSTALL_DIR=/opt/uv/python uv python find 3.11 > /dev/null 2>&1; then export UV_PYTHON_INSTALL_DIR=/opt/uv/python UV_PYTHON_DOWNLOADS=never; fi; uv venv -q --prompt dstack -p 3.11 --seed $DSTACK_VENV_DIR) && eval $(echo ''. $DSTACK_VENV_DIR/bin/activate'' | sudo tee -a /dstack/profile) && echo hello"],"env":{"A":"b"},"home_dir":"/root","image_name":"dstackai/base:0.16-base-ubuntu24.04","privileged":false,"single_branch":true,"max_duration":null,"stop_duration":300,"utilization_policy":null,"registry_auth":null,"requirements":{"resources":{"cpu":{"arch":"x86","count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"max_price":null,"spot":false,"reservation":null,"multinode":false,"backend_options":null},"retry":null,"volumes":[],"ssh_key":null,"working_dir":null,"repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":"/workflow","repo_exists_action":null,"file_archives":[],"service_port":null,"probes":[],"node_group_index":0,"node_group_name":"0","node_group_job_index":0}',NULL,NULL,NULL,NULL,0,'Fleet is at capacity',0,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,NULL);
INSERT INTO "jobs" VALUES('c724ac431cf24b3597a992294b336e4f','9e800fa7b2084832ab7fd83660470d43','5591f5305e4745d8a123004ec940f1e4','second',0,'second-0-0',0,'2026-11-21 17:17:19.808918','2026-11-21 17:17:25.784865','FAILED','FAILED_TO_START_DUE_TO_NO_CAPACITY','{"replica_num":0,"job_num":0,"job_name":"second-0-0","jobs_per_replica":1,"replica_group":"0","app_specs":[],"user":null,"commands":["/bin/bash","-i","-c","eval $(echo ''export DSTACK_VENV_DIR=/dstack/venv'' | sudo tee -a /dstack/profile) && sudo rm -rf $DSTACK_VENV_DIR && sudo mkdir $DSTACK_VENV_DIR && sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR && (if UV_PYTHON_INSTALL_DIR=/opt/uv/python uv python find 3.11 > /dev/null 2>&1; then export UV_PYTHON_INSTALL_DIR=/opt/uv/python UV_PYTHON_DOWNLOADS=never; fi; uv venv -q --prompt dstack -p 3.11 --seed $DSTACK_VENV_DIR) && eval $(echo ''. $DSTACK_VENV_DIR/bin/activate'' | sudo tee -a /dstack/profile) && echo hello"],"env":{"A":"b"},"home_dir":"/root","image_name":"dstackai/base:0.16-base-ubuntu24.04","privileged":false,"single_branch":true,"max_duration":null,"stop_duration":300,"utilization_policy":null,"registry_auth":null,"requirements":{"resources":{"cpu":{"arch":"x86","count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"max_price":null,"spot":false,"reservation":null,"multinode":false,"backend_options":null},"retry":null,"volumes":[],"ssh_key":null,"working_dir":null,"repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":"/workflow","repo_exists_action":null,"file_archives":[],"service_port":null,"probes":[],"node_group_index":0,"node_group_name":"0","node_group_job_index":0}',NULL,NULL,NULL,NULL,0,'Fleet is at capacity',0,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,NULL);
INSERT INTO "jobs" VALUES('8c7dbbc91ec84a8db5581158c2d2d4f9','9e800fa7b2084832ab7fd83660470d43','50f15a1c979b43a09ccf46f8109ba4a6','waiting',0,'waiting-0-0',0,'2026-11-21 17:17:58.967114','2026-11-21 17:18:05.532715','FAILED','FAILED_TO_START_DUE_TO_NO_CAPACITY','{"replica_num":0,"job_num":0,"job_name":"waiting-0-0","jobs_per_replica":1,"replica_group":"0","app_specs":[],"user":null,"commands":["/bin/bash","-i","-c","eval $(echo ''export DSTACK_VENV_DIR=/dstack/venv'' | sudo tee -a /dstack/profile) && sudo rm -rf $DSTACK_VENV_DIR && sudo mkdir $DSTACK_VENV_DIR && sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR && (if UV_PYTHON_INSTALL_DIR=/opt/uv/python uv python find 3.11 > /dev/null 2>&1; then export UV_PYTHON_INSTALL_DIR=/opt/uv/python UV_PYTHON_DOWNLOADS=never; fi; uv venv -q --prompt dstack -p 3.11 --seed $DSTACK_VENV_DIR) && eval $(echo ''. $DSTACK_VENV_DIR/bin/activate'' | sudo tee -a /dstack/profile) && echo hello"],"env":{},"home_dir":"/root","image_name":"dstackai/base:0.16-base-ubuntu24.04","privileged":false,"single_branch":true,"max_duration":null,"stop_duration":300,"utilization_policy":null,"registry_auth":null,"requirements":{"resources":{"cpu":{"arch":"x86","count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"max_price":null,"spot":false,"reservation":null,"multinode":false,"backend_options":null},"retry":{"on_events":["no-capacity"],"duration":86400},"volumes":[],"ssh_key":null,"working_dir":null,"repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":"/workflow","repo_exists_action":null,"file_archives":[],"service_port":null,"probes":[],"node_group_index":0,"node_group_name":"0","node_group_job_index":0}',NULL,NULL,NULL,NULL,0,'Fleet is at capacity',0,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,NULL);
CREATE TABLE "members" (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	user_id CHAR(32) NOT NULL, 
	project_role VARCHAR(100) NOT NULL, 
	member_num INTEGER, 
	CONSTRAINT pk_members PRIMARY KEY (id), 
	CONSTRAINT fk_members_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_members_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "members" VALUES('a0937ad6082f40968520c466320abc7f','9e800fa7b2084832ab7fd83660470d43','1302e64446634c8497fa1398315f0eaa','ADMIN',0);
INSERT INTO "members" VALUES('80cebe2dd783457f867d91dec2b8eabe','2df5182aa4314fecbe6da3d91628f157','1302e64446634c8497fa1398315f0eaa','ADMIN',0);
INSERT INTO "members" VALUES('0d247e82a19a4c2cba0e0ecc070ac956','2df5182aa4314fecbe6da3d91628f157','5af8011d1e3b4150ae7d8762bf652e7d','MANAGER',NULL);
CREATE TABLE placement_groups (
	id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	fleet_id CHAR(32) NOT NULL, 
	fleet_deleted BOOLEAN NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	deleted_at DATETIME, 
	configuration TEXT NOT NULL, 
	provisioning_data TEXT, lock_expires_at DATETIME, lock_token CHAR(32), lock_owner VARCHAR(100), 
	CONSTRAINT pk_placement_groups PRIMARY KEY (id), 
	CONSTRAINT fk_placement_groups_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id), 
	CONSTRAINT fk_placement_groups_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE TABLE pools (
	id CHAR(32) NOT NULL, 
	name VARCHAR(50) NOT NULL, 
	created_at DATETIME NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	deleted_at DATETIME, 
	project_id CHAR(32) NOT NULL, 
	CONSTRAINT pk_pools PRIMARY KEY (id), 
	CONSTRAINT fk_pools_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE TABLE probes (
	id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	job_id CHAR(32) NOT NULL, 
	probe_num INTEGER NOT NULL, 
	due DATETIME NOT NULL, 
	success_streak BIGINT NOT NULL, 
	active BOOLEAN NOT NULL, 
	CONSTRAINT pk_probes PRIMARY KEY (id, job_id), 
	CONSTRAINT fk_probes_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id), 
	CONSTRAINT uq_probes_job_id_probe_num UNIQUE (job_id, probe_num)
);
CREATE TABLE "projects" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(50) NOT NULL, 
	ssh_private_key TEXT NOT NULL, 
	ssh_public_key TEXT NOT NULL, 
	default_gateway_id CHAR(32), 
	owner_id CHAR(32) NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	default_pool_id CHAR(32), 
	created_at DATETIME NOT NULL, 
	is_public BOOLEAN DEFAULT 0 NOT NULL, original_name VARCHAR(50), templates_repo TEXT, 
	CONSTRAINT pk_projects PRIMARY KEY (id), 
	CONSTRAINT uq_projects_name UNIQUE (name), 
	CONSTRAINT fk_projects_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_projects_default_gateway_id_gateways FOREIGN KEY(default_gateway_id) REFERENCES gateways (id) ON DELETE SET NULL, 
	CONSTRAINT fk_projects_default_pool_id_pools FOREIGN KEY(default_pool_id) REFERENCES pools (id) ON DELETE SET NULL
);
INSERT INTO "projects" VALUES('9e800fa7b2084832ab7fd83660470d43','main','private key of main','ssh-rsa AAAA main',NULL,'1302e64446634c8497fa1398315f0eaa',0,NULL,'2026-11-21 17:16:25.326414',0,NULL,NULL);
INSERT INTO "projects" VALUES('2df5182aa4314fecbe6da3d91628f157','team','private key of team','ssh-rsa AAAA team',NULL,'1302e64446634c8497fa1398315f0eaa',0,NULL,'2026-11-21 17:16:43.693041',0,NULL,NULL);
CREATE TABLE repo_creds (
	id CHAR(32) NOT NULL, 
	repo_id CHAR(32) NOT NULL, 
	user_id CHAR(32) NOT NULL, 
	creds VARCHAR(10000) NOT NULL, 
	CONSTRAINT pk_repo_creds PRIMARY KEY (id), 
	CONSTRAINT fk_repo_creds_repo_id_repos FOREIGN KEY(repo_id) REFERENCES repos (id) ON DELETE CASCADE, 
	CONSTRAINT fk_repo_creds_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_repo_creds_repo_id_user_id UNIQUE (repo_id, user_id)
);
INSERT INTO "repo_creds" VALUES('abee6b158e1946d988d8f08e66695f4a','2917e9d427ba43329a6e172ebd566ce2','1302e64446634c8497fa1398315f0eaa','enc:aes:k1:2k5ezAplMy8ypXuZaTBEO63yO+HakO/FUQKw8uJ87sEgQj8UQKG1Jra7WxN6eXJansaUBoUlzNbfNFahwDfwIZ8nzZm7TxVMZL9WcOpkPiTYqRlLLKhU4etn+6lkwc3r5ZpUiYt7Tabb5X74IXLyyOnAjHddGNuPxUXf');
CREATE TABLE "repos" (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	type VARCHAR(100) NOT NULL, 
	info TEXT NOT NULL, 
	creds VARCHAR(5000), 
	CONSTRAINT pk_repos PRIMARY KEY (id), 
	CONSTRAINT fk_repos_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT uq_repos_project_id_name UNIQUE (project_id, name)
);
INSERT INTO "repos" VALUES('2917e9d427ba43329a6e172ebd566ce2','9e800fa7b2084832ab7fd83660470d43','repo','REMOTE','{"repo_type":"remote","repo_name":"https://example.invalid/x.git"}',NULL);
INSERT INTO "repos" VALUES('28a2f60d635e440caa352160e5edfc22','9e800fa7b2084832ab7fd83660470d43','none','VIRTUAL','{"repo_type":"virtual"}',NULL);
CREATE TABLE "runs" (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	repo_id CHAR(32) NOT NULL, 
	user_id CHAR(32) NOT NULL, 
	submitted_at DATETIME NOT NULL, 
	run_name VARCHAR(100) NOT NULL, 
	status VARCHAR(100) NOT NULL, 
	run_spec TEXT NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	gateway_id CHAR(32), 
	termination_reason VARCHAR(100), 
	service_spec TEXT, 
	fleet_id CHAR(32), 
	resubmission_attempt INTEGER NOT NULL, 
	priority INTEGER NOT NULL, 
	deployment_num INTEGER NOT NULL, 
	desired_replica_count INTEGER NOT NULL, 
	next_triggered_at DATETIME, 
	desired_replica_counts TEXT, 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	skip_min_processing_interval BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT fk_runs_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT fk_runs_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_runs_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id), 
	CONSTRAINT fk_runs_gateway_id_gateways FOREIGN KEY(gateway_id) REFERENCES gateways (id) ON DELETE SET NULL, 
	CONSTRAINT fk_runs_repo_id_repos FOREIGN KEY(repo_id) REFERENCES repos (id) ON DELETE CASCADE
);
INSERT INTO "runs" VALUES('41843b662982426e8e1e736cd3067ee9','9e800fa7b2084832ab7fd83660470d43','28a2f60d635e440caa352160e5edfc22','1302e64446634c8497fa1398315f0eaa','2026-11-21 17:17:19.311501','finished','FAILED','{"run_name":"finished","repo_id":"none","repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":null,"file_archives":[],"working_dir":null,"configuration_path":null,"configuration":{"nodes":1,"groups":null,"ports":[],"commands":["echo hello"],"type":"task","name":"finished","image":null,"user":null,"privileged":false,"entrypoint":null,"working_dir":null,"home_dir":"/root","registry_auth":null,"python":null,"nvcc":null,"single_branch":null,"env":{"A":"b"},"shell":null,"resources":{"cpu":{"arch":null,"count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"priority":0,"volumes":[],"docker":null,"repos":[],"files":[],"dstack":false,"setup":[],"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null},"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"ssh_key_pub":"ssh-ed25519 AAAA x"}',0,'2026-11-21 17:17:39.491542',NULL,'JOB_FAILED',NULL,NULL,0,0,0,1,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "runs" VALUES('5591f5305e4745d8a123004ec940f1e4','9e800fa7b2084832ab7fd83660470d43','28a2f60d635e440caa352160e5edfc22','1302e64446634c8497fa1398315f0eaa','2026-11-21 17:17:19.805536','second','FAILED','{"run_name":"second","repo_id":"none","repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":null,"file_archives":[],"working_dir":null,"configuration_path":null,"configuration":{"nodes":1,"groups":null,"ports":[],"commands":["echo hello"],"type":"task","name":"second","image":null,"user":null,"privileged":false,"entrypoint":null,"working_dir":null,"home_dir":"/root","registry_auth":null,"python":null,"nvcc":null,"single_branch":null,"env":{"A":"b"},"shell":null,"resources":{"cpu":{"arch":null,"count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"priority":0,"volumes":[],"docker":null,"repos":[],"files":[],"dstack":false,"setup":[],"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null},"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"ssh_key_pub":"ssh-ed25519 AAAA x"}',0,'2026-11-21 17:17:39.548331',NULL,'JOB_FAILED',NULL,NULL,0,0,0,1,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "runs" VALUES('50f15a1c979b43a09ccf46f8109ba4a6','9e800fa7b2084832ab7fd83660470d43','28a2f60d635e440caa352160e5edfc22','1302e64446634c8497fa1398315f0eaa','2026-11-21 17:17:58.955188','waiting','SUBMITTED','{"run_name":"waiting","repo_id":"none","repo_data":{"repo_type":"virtual"},"repo_code_hash":null,"repo_dir":null,"file_archives":[],"working_dir":null,"configuration_path":null,"configuration":{"nodes":1,"groups":null,"ports":[],"commands":["echo hello"],"type":"task","name":"waiting","image":null,"user":null,"privileged":false,"entrypoint":null,"working_dir":null,"home_dir":"/root","registry_auth":null,"python":null,"nvcc":null,"single_branch":null,"env":{},"shell":null,"resources":{"cpu":{"arch":null,"count":{"min":2,"max":null}},"memory":{"min":8.0,"max":null},"shm_size":null,"gpu":{"vendor":"nvidia","name":null,"count":{"min":0,"max":null},"memory":null,"total_memory":null,"compute_capability":null},"disk":{"size":{"min":100.0,"max":null}}},"priority":0,"volumes":[],"docker":null,"repos":[],"files":[],"dstack":false,"setup":[],"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":{"on_events":["no-capacity"],"duration":86400},"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null},"profile":{"backends":null,"regions":null,"availability_zones":null,"instance_types":null,"reservation":null,"spot_policy":null,"retry":null,"max_duration":null,"stop_duration":null,"max_price":null,"creation_policy":null,"idle_duration":null,"utilization_policy":null,"startup_order":null,"stop_criteria":null,"schedule":null,"fleets":null,"instances":null,"tags":null,"backend_options":null,"name":"default","default":false},"ssh_key_pub":"ssh-ed25519 AAAA x"}',0,'2026-11-21 17:17:59.311648',NULL,NULL,NULL,NULL,0,0,0,1,NULL,NULL,NULL,NULL,'RunPipeline',0);
CREATE TABLE secrets (
	id CHAR(32) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	value VARCHAR NOT NULL, 
	CONSTRAINT pk_secrets PRIMARY KEY (id), 
	CONSTRAINT fk_secrets_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT uq_secrets_project_id_name UNIQUE (project_id, name)
);
INSERT INTO "secrets" VALUES('4de5c3aca3154ddb915b31fcb9a400f5','2df5182aa4314fecbe6da3d91628f157','2026-11-21 17:16:44.004168','2026-11-21 17:16:44.004174','S','enc:aes:k1:lldAO6v5dreO1ZIVkFZ6JM/lMw8lkyCBUcUkhqtAImw6gBfJWBZx8ErJ1MFuyfyLnQ==');
CREATE TABLE service_registrations (
	id CHAR(32) NOT NULL, 
	run_id CHAR(32) NOT NULL, 
	gateway_replica_id CHAR(32) NOT NULL, 
	is_registered BOOLEAN NOT NULL, 
	register_attempt INTEGER NOT NULL, 
	register_status_message TEXT, 
	unregister_attempt INTEGER NOT NULL, 
	unregister_status_message TEXT, 
	CONSTRAINT pk_service_registrations PRIMARY KEY (id), 
	CONSTRAINT fk_service_registrations_gateway_replica_id_gateway_computes FOREIGN KEY(gateway_replica_id) REFERENCES gateway_computes (id) ON DELETE CASCADE, 
	CONSTRAINT fk_service_registrations_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_service_registrations_run_id_gateway_replica_id UNIQUE (run_id, gateway_replica_id)
);
CREATE TABLE service_replica_registrations (
	id CHAR(32) NOT NULL, 
	job_id CHAR(32) NOT NULL, 
	gateway_replica_id CHAR(32) NOT NULL, 
	is_registered BOOLEAN NOT NULL, 
	register_attempt INTEGER NOT NULL, 
	register_status_message TEXT, 
	unregister_attempt INTEGER NOT NULL, 
	unregister_status_message TEXT, 
	CONSTRAINT pk_service_replica_registrations PRIMARY KEY (id), 
	CONSTRAINT fk_service_replica_registrations_gateway_replica_id_gateway_computes FOREIGN KEY(gateway_replica_id) REFERENCES gateway_computes (id) ON DELETE CASCADE, 
	CONSTRAINT fk_service_replica_registrations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_service_replica_registrations_job_id_gateway_replica_id UNIQUE (job_id, gateway_replica_id)
);
CREATE TABLE service_router_worker_sync (
	id CHAR(32) NOT NULL, 
	run_id CHAR(32) NOT NULL, 
	deleted BOOLEAN DEFAULT 0 NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	CONSTRAINT pk_service_router_worker_sync PRIMARY KEY (id), 
	CONSTRAINT fk_service_router_worker_sync_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE user_public_keys (
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	user_id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	type VARCHAR(100) NOT NULL, 
	fingerprint VARCHAR(100) NOT NULL, 
	"key" TEXT NOT NULL, 
	CONSTRAINT pk_user_public_keys PRIMARY KEY (id), 
	CONSTRAINT fk_user_public_keys_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_user_public_keys_user_id_fingerprint UNIQUE (user_id, fingerprint)
);
INSERT INTO "user_public_keys" VALUES('bc7a556bb0df47fcb66feb9decd3cdcc','2026-11-21 17:16:44.236471','1302e64446634c8497fa1398315f0eaa','me@here','ssh-ed25519','SHA256:8ePxxrCNbqUFETnu0N4tpVj1nJR+tnYyyISWxbh23YE','ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJZCqKJ4Wjjx4bWIhlFyJj5WVwKCYsXY7n5fJ3v3Pp0X me@here');
CREATE TABLE "users" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(50) NOT NULL, 
	token VARCHAR(200) NOT NULL, 
	global_role VARCHAR(100) NOT NULL, 
	projects_quota INTEGER NOT NULL, 
	email VARCHAR(200), 
	token_hash VARCHAR(2000) NOT NULL, 
	active BOOLEAN NOT NULL, 
	created_at DATETIME NOT NULL, 
	ssh_private_key TEXT, 
	ssh_public_key TEXT, 
	deleted BOOLEAN DEFAULT 0 NOT NULL, 
	original_name VARCHAR(50), 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT uq_users_token_hash UNIQUE (token_hash), 
	CONSTRAINT uq_users_name UNIQUE (name), 
	CONSTRAINT uq_users_token UNIQUE (token)
);
INSERT INTO "users" VALUES('1302e64446634c8497fa1398315f0eaa','admin','enc:aes:k1:DS3aCn7ipLLJuLVhCCicUywUQTdIPs8TdiythzE/RUDmIDb1HzNQoO0UhRJ2kq6m','ADMIN',10,NULL,'6d051bd8a813ea041dbc70424a755be23781f2840b8979c52cc0326ba4c10dad',1,'2026-11-21 17:16:25.006603','private key of admin','ssh-rsa AAAA admin
',0,NULL);
INSERT INTO "users" VALUES('5af8011d1e3b4150ae7d8762bf652e7d','alice','enc:aes:k1:bESx/Nc7IT8J3uSCAyGASOtz6B2yNz70XchWNQkBahcEpxE4ggesZLnGU1QjvRMlCUEIH6PFajN6HqcIejxiDw==','USER',10,'alice@example.com','36422c3df72d16dcea2e31ff1abc8828b1eb0caefb187a2faf7f5184896f9fc3',1,'2026-11-21 17:16:43.219030','private key of alice','ssh-rsa AAAA alice
',0,NULL);
INSERT INTO "users" VALUES('b770a3e5a11141348a3e760a81aac7a0','_deleted_1795281403_95e23d5072b50a72','enc:aes:k1:3X1oCgG86f9nT4wqS6H70w0GZ4WGeereCpvtBWpTayDlzkcUdXV0/b6/PC9AayYaphPFgIdqHJn0ym4J7hz9eA==','USER',10,NULL,'6ff9b5b9b50b1cafae8f2745920eee232ab6ec42bbb2ce4fc97b736ac487d9cd',0,'2026-11-21 17:16:43.346795','private key of _deleted_1795281403_95e23d5072b50a72','ssh-rsa AAAA _deleted_1795281403_95e23d5072b50a72
',1,'gone');
INSERT INTO "users" VALUES('da91571104ec43819bac87325369c918','_deleted_1795281438_7302df77d2e3fb67','enc:aes:k1:tpbB7xZmSxwLz09kWfxHkIZlkCeElqQv3E2LZRSDF564uvDTRrYoSqjHyGBsxY3WIRREQOy5tWMLAKmXIf3rAg==','USER',10,NULL,'85c8ce9a316ae22763f8ae05b86574c1adefc549c697d8bea6a846b4d2e865db',0,'2026-11-21 17:17:18.900997','private key of _deleted_1795281438_7302df77d2e3fb67','ssh-rsa AAAA _deleted_1795281438_7302df77d2e3fb67
',1,'gone');
CREATE TABLE "volumes" (
	id CHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	project_id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_processed_at DATETIME NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	deleted_at DATETIME, 
	status VARCHAR(100) NOT NULL, 
	status_message TEXT, 
	configuration TEXT NOT NULL, 
	volume_provisioning_data TEXT, 
	volume_attachment_data TEXT, 
	user_id CHAR(32) NOT NULL, 
	last_job_processed_at DATETIME, 
	to_be_deleted BOOLEAN DEFAULT 0 NOT NULL, 
	auto_cleanup_enabled BOOLEAN, 
	lock_expires_at DATETIME, 
	lock_token CHAR(32), 
	lock_owner VARCHAR(100), 
	CONSTRAINT pk_volumes PRIMARY KEY (id), 
	CONSTRAINT fk_volumes_project_id_projects FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT fk_volumes_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE TABLE "volumes_attachments" (
	volume_id CHAR(32) NOT NULL, 
	instance_id CHAR(32) NOT NULL, 
	attachment_data TEXT, 
	CONSTRAINT pk_volumes_attachments PRIMARY KEY (volume_id, instance_id), 
	CONSTRAINT fk_volumes_attachments_volume_id_volumes FOREIGN KEY(volume_id) REFERENCES volumes (id), 
	CONSTRAINT fk_volumes_attachments_instace_id_instances FOREIGN KEY(instance_id) REFERENCES instances (id)
);
CREATE UNIQUE INDEX ix_service_router_worker_sync_run_id ON service_router_worker_sync (run_id);
COMMIT;
