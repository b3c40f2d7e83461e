"""The backend of dstack 0.22.5 against the API at argv[1]: prints what came of it."""

import sys
from types import SimpleNamespace

import yaml
from kubernetes import client

from dstack._internal.core.backends.kubernetes import compute as module
from dstack._internal.core.backends.kubernetes.models import KubernetesConfig
from dstack._internal.core.models.volumes import KubernetesVolumeConfiguration

kubeconfig = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": sys.argv[1]}}],
    "users": [{"name": "u", "user": {"token": "token"}}],
}
config = KubernetesConfig(
    kubeconfig={"filename": "", "data": yaml.safe_dump(kubeconfig)}, contexts=["c"]
)
backend = module.KubernetesCompute(config)
api = client.CoreV1Api(backend.region_cluster_map["c"].api_client)

for offer in backend.get_all_offers_with_availability(unallocated_resources=True):
    gpus = offer.instance.resources.gpus
    print("offer", offer.instance.name, gpus[0].name if gpus else "-", len(gpus))

configuration = KubernetesVolumeConfiguration(name="data", size="10GB", region="c")
volume = SimpleNamespace(
    configuration=configuration, project_name="main", name="data", user="admin", volume_id=None
)
made = backend.create_volume(volume)
print("volume claim-made" if made.volume_id.startswith("dstack-") else "volume " + made.volume_id)
registered = KubernetesVolumeConfiguration(
    name="data", claim_name=made.volume_id, region="c"
)
volume.configuration = registered
assert backend.register_volume(volume).size_gb == 10
volume.volume_id = made.volume_id
backend.delete_volume(volume)

module._create_jump_pod_service_if_not_exists(
    api=api,
    namespace="default",
    project_name="main",
    jump_pod_name="dstack-main-ssh-jump-pod",
    jump_pod_service_name="dstack-main-ssh-jump-pod-service",
    jump_pod_port=None,
    authorized_keys=["ssh-ed25519 AAAA main"],
)
scheduled, _ = module._wait_for_pod_scheduled_or_finished(
    api, "default", "dstack-main-ssh-jump-pod", timeout_seconds=10
)
service = api.read_namespaced_service("dstack-main-ssh-jump-pod-service", "default")
print("jump ready" if scheduled and service.spec.ports[0].node_port else "jump lost")
backend.terminate_instance("dstack-nothing", "c")
