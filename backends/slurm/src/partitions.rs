//! Which partitions of a cluster serve which jobs.

use std::collections::BTreeMap;

use dstack_compute::config::SlurmCluster;
use dstack_model::instances::Gpu;
use dstack_units::{AcceleratorVendor, GpuSpec, Memory, accelerators};

use crate::gpu;

/// Partitions of a cluster, as configured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Partitions {
    /// The GPU of each partition that has such.
    gpus: BTreeMap<String, Gpu>,
    /// Those for jobs without GPUs; `None`: all others.
    cpu: Option<Vec<String>>,
}

impl Partitions {
    /// Reads the configuration of a cluster.
    ///
    /// # Errors
    /// A GPU is not known, or a partition has several; the text names the field, for users.
    pub(crate) fn read(cluster: &SlurmCluster) -> Result<Self, String> {
        let mut gpus: BTreeMap<String, Gpu> = BTreeMap::new();
        for (at, entry) in cluster.gpu_partitions.iter().flatten().enumerate() {
            let field = format!("cluster '{}', gpu_partitions[{at}]", cluster.name);
            let gpu = gpu::read(&entry.gpu).map_err(|error| format!("{field}.gpu: {error}"))?;
            for partition in &entry.partitions {
                check_name(partition).map_err(|error| format!("{field}.partitions: {error}"))?;
                let before = gpus.insert(partition.clone(), gpu.clone());
                if let Some(before) = before.filter(|before| *before != gpu) {
                    return Err(format!(
                        "Multiple GPU models mapped in cluster '{}' partition '{partition}': {}, {}",
                        cluster.name, before.name, gpu.name
                    ));
                }
            }
        }
        for partition in cluster.cpu_partitions.iter().flatten() {
            check_name(partition)
                .map_err(|error| format!("cluster '{}', cpu_partitions: {error}", cluster.name))?;
        }
        Ok(Self {
            gpus,
            cpu: cluster.cpu_partitions.clone(),
        })
    }

    /// Those that take jobs without GPUs, of those that there are.
    pub(crate) fn for_cpus(&self, discovered: &[String]) -> Vec<String> {
        let takes = |partition: &&String| match &self.cpu {
            Some(named) => named.contains(partition),
            None => !self.gpus.contains_key(*partition),
        };
        discovered.iter().filter(takes).cloned().collect()
    }

    /// Those that have such GPUs, of those that there are.
    pub(crate) fn for_gpus(&self, discovered: &[String], spec: &GpuSpec) -> Vec<String> {
        let has = |partition: &&String| self.gpus.get(*partition).is_some_and(|gpu| fits(gpu, spec));
        discovered.iter().filter(has).cloned().collect()
    }

    /// The GPU of a node in these partitions; `None`: they have none, or several.
    pub(crate) fn gpu_of(&self, partitions: &[String]) -> Option<&Gpu> {
        let mut gpus = partitions.iter().filter_map(|partition| self.gpus.get(partition));
        let first = gpus.next()?;
        gpus.all(|gpu| gpu == first).then_some(first)
    }
}

/// Whether it is a GPU as asked for, apart from how many.
fn fits(gpu: &Gpu, spec: &GpuSpec) -> bool {
    let is_named = |names: &Vec<String>| names.iter().any(|name| name.eq_ignore_ascii_case(&gpu.name));
    spec.vendor.is_none_or(|vendor| Some(vendor) == gpu.vendor)
        && spec.name.as_ref().is_none_or(is_named)
        && spec.memory.is_none_or(|memory| memory.contains(memory_of(gpu)))
        && spec.compute_capability.is_none_or(|least| {
            // Known for NVIDIA's GPUs only.
            let known = accelerators::compute_capability(&gpu.name)
                .filter(|_| gpu.vendor == Some(AcceleratorVendor::Nvidia));
            known.is_some_and(|(major, minor)| (i64::from(major), i64::from(minor)) >= (least.0, least.1))
        })
}

#[allow(clippy::cast_precision_loss)] // sizes of GPUs
pub(crate) fn memory_of(gpu: &Gpu) -> Memory {
    Memory::from_mib(gpu.memory_mib as f64)
}

/// Names go into scripts, between commas.
fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    match !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(format!("`{name}` is no name of a partition")),
    }
}

#[cfg(test)]
mod tests {
    use dstack_compute::config::BackendConfig;
    use serde_json::{Value, json};

    use super::*;

    fn read(fields: &Value) -> Result<Partitions, String> {
        let mut cluster = json!({"name": "c", "hostname": "h", "user": "u", "private_key": {"content": "k"}});
        for (name, value) in fields.as_object().unwrap() {
            cluster[name] = value.clone();
        }
        let config = BackendConfig::read(&json!({"type": "slurm", "clusters": [cluster]})).unwrap();
        let BackendConfig::Slurm(config) = config else {
            panic!("it is of Slurm");
        };
        Partitions::read(&config.clusters[0])
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn spec(text: &str) -> GpuSpec {
        text.parse().unwrap()
    }

    #[test]
    fn jobs_go_where_they_are_wanted() {
        let all = names(&["batch", "debug", "a100", "h100"]);
        let gpus = json!([
            {"gpu": "A100:80GB", "partitions": ["a100", "gone"]},
            {"gpu": "H100", "partitions": ["h100"]},
        ]);
        let partitions = read(&json!({"gpu_partitions": gpus})).unwrap();
        assert_eq!(partitions.for_cpus(&all), ["batch", "debug"]);
        assert_eq!(partitions.for_gpus(&all, &spec("1..")), ["a100", "h100"]);
        assert_eq!(partitions.for_gpus(&all, &spec("H100:1")), ["h100"]);
        assert_eq!(partitions.for_gpus(&all, &spec("amd:1")), [""; 0]);
        assert_eq!(partitions.for_gpus(&all, &spec("40GB:1")), [""; 0]);
        let newest = GpuSpec {
            compute_capability: Some("9.0".parse().unwrap()),
            ..spec("1..")
        };
        assert_eq!(partitions.for_gpus(&all, &newest), ["h100"]);
        let restricted =
            read(&json!({"gpu_partitions": gpus, "cpu_partitions": ["debug", "h100", "gone"]})).unwrap();
        assert_eq!(restricted.for_cpus(&all), ["debug", "h100"]);
        assert_eq!(
            read(&json!({"cpu_partitions": []})).unwrap().for_cpus(&all),
            [""; 0]
        );
    }

    #[test]
    fn a_node_has_the_gpu_of_its_partitions() {
        let gpus = json!([
            {"gpu": "A100:80GB", "partitions": ["a", "b"]},
            {"gpu": "H100", "partitions": ["c"]},
        ]);
        let partitions = read(&json!({"gpu_partitions": gpus})).unwrap();
        assert_eq!(partitions.gpu_of(&names(&["x", "a", "b"])).unwrap().name, "A100");
        assert_eq!(partitions.gpu_of(&names(&["x"])), None);
        assert_eq!(partitions.gpu_of(&names(&["a", "c"])), None);
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        let two = json!({"gpu_partitions": [
            {"gpu": "A100:80GB", "partitions": ["p"]},
            {"gpu": "A100:40GB", "partitions": ["p"]},
        ]});
        assert_eq!(
            read(&two).unwrap_err(),
            "Multiple GPU models mapped in cluster 'c' partition 'p': A100, A100"
        );
        let unknown = json!({"gpu_partitions": [{"gpu": "X1", "partitions": ["p"]}]});
        assert!(
            read(&unknown)
                .unwrap_err()
                .starts_with("cluster 'c', gpu_partitions[0].gpu: no matching GPU")
        );
        let name = json!({"cpu_partitions": ["a b"]});
        assert_eq!(
            read(&name).unwrap_err(),
            "cluster 'c', cpu_partitions: `a b` is no name of a partition"
        );
    }
}
