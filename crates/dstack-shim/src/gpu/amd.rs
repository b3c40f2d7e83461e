//! AMD: amd-smi, run in a container so that the host needs no ROCm.

use std::time::Duration;

use serde_json::Value;

use super::{DetectError, Gpu, HostFiles, known_version};
use crate::command::{Commands, Output};

const LIMIT: Duration = Duration::from_secs(120);
const TOOL: &str = "amd-smi";
const BASE: [&str; 7] = [
    "run",
    "--rm",
    "--device",
    "/dev/kfd",
    "--device",
    "/dev/dri",
    "dstackai/amd-smi:latest",
];
const QUERY: [&str; 5] = ["static", "--json", "--asic", "--vram", "--bus"];
// docker's own exit codes: the engine failed, or the command could not be started.
const DOCKER_FAILED: [i32; 3] = [125, 126, 127];

pub(super) async fn detect(commands: &dyn Commands, files: &dyn HostFiles) -> Result<Vec<Gpu>, DetectError> {
    let mut output = run(commands, true).await?;
    if !output.success() && !output.code.is_some_and(|code| DOCKER_FAILED.contains(&code)) {
        // Older amd-smi fails on --driver.
        output = run(commands, false).await?;
    }
    parse(&super::stdout_of(TOOL, output)?, files)
}

async fn run(commands: &dyn Commands, driver: bool) -> Result<Output, DetectError> {
    let mut args: Vec<&str> = BASE.into_iter().chain(QUERY).collect();
    if driver {
        args.push("--driver");
    }
    Ok(commands.run("docker", &args, LIMIT).await?)
}

/// A flat array of GPUs, or `{"gpu_data": […]}`. GPUs whose render node does not resolve are skipped.
fn parse(text: &str, files: &dyn HostFiles) -> Result<Vec<Gpu>, DetectError> {
    let unexpected = |what: String| DetectError::Unexpected { tool: TOOL, what };
    let value: Value = serde_json::from_str(text).map_err(|error| unexpected(error.to_string()))?;
    let list = match &value {
        Value::Array(list) => list,
        other => other
            .get("gpu_data")
            .and_then(Value::as_array)
            .ok_or_else(|| unexpected("no list of GPUs".into()))?,
    };
    Ok(list.iter().filter_map(|gpu| parse_one(gpu, files)).collect())
}

fn parse_one(gpu: &Value, files: &dyn HostFiles) -> Option<Gpu> {
    let bdf = gpu.pointer("/bus/bdf")?.as_str()?;
    let node = files.resolve(&format!("/dev/dri/by-path/pci-{bdf}-render"))?;
    Some(Gpu {
        name: text(gpu, "/asic/market_name"),
        memory_mib: gpu
            .pointer("/vram/size/value")
            .and_then(Value::as_u64)
            .unwrap_or(0),
        id: node.to_string_lossy().into_owned(),
        driver_version: driver(gpu),
    })
}

fn driver(gpu: &Value) -> String {
    ["/driver/version", "/driver/driver_version"]
        .iter()
        .find_map(|path| gpu.pointer(path)?.as_str())
        .map(known_version)
        .unwrap_or_default()
}

fn text(gpu: &Value, path: &str) -> String {
    gpu.pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::recorded::Recorded;
    use crate::gpu::fake::files;

    const FLAT: &str = r#"[{"gpu":0,"asic":{"market_name":"AMD Instinct MI300X"},"bus":{"bdf":"0000:05:00.0"},
        "vram":{"type":"HBM3","size":{"value":196592,"unit":"MB"}},"driver":{"name":"amdgpu","version":"6.10.5"}},
        {"gpu":1,"asic":{"market_name":"AMD Instinct MI300X"},"bus":{"bdf":"0000:99:00.0"},"vram":{"size":{"value":1}}}]"#;
    const NESTED: &str = r#"{"gpu_data":[{"asic":{"market_name":"MI210"},"bus":{"bdf":"0000:05:00.0"},
        "vram":{"size":{"value":65520}},"driver":{"driver_version":"N/A"}}]}"#;

    fn line(driver: bool) -> String {
        let args = BASE.into_iter().chain(QUERY).collect::<Vec<_>>().join(" ");
        format!("docker {args}{}", if driver { " --driver" } else { "" })
    }

    #[tokio::test]
    async fn flat_and_nested_answers() {
        let files = files([("/dev/dri/by-path/pci-0000:05:00.0-render", "/dev/dri/renderD128")]);
        let found = detect(&Recorded::default().answer(&line(true), 0, FLAT), &files)
            .await
            .unwrap();
        assert_eq!(
            found,
            [Gpu {
                name: "AMD Instinct MI300X".into(),
                memory_mib: 196_592,
                id: "/dev/dri/renderD128".into(),
                driver_version: "6.10.5".into(),
            }],
            "the second GPU has no render node"
        );
        let nested = detect(&Recorded::default().answer(&line(true), 0, NESTED), &files)
            .await
            .unwrap();
        assert_eq!(
            (nested[0].name.as_str(), nested[0].driver_version.as_str()),
            ("MI210", "")
        );
    }

    #[tokio::test]
    async fn asks_again_without_driver_only_when_the_tool_itself_failed() {
        let files = files([("/dev/dri/by-path/pci-0000:05:00.0-render", "/dev/dri/renderD128")]);
        let old = Recorded::default()
            .answer(&line(true), 2, "")
            .answer(&line(false), 0, NESTED);
        assert_eq!(detect(&old, &files).await.unwrap().len(), 1);
        let engine = Recorded::default()
            .answer(&line(true), 125, "")
            .answer(&line(false), 0, NESTED);
        assert!(detect(&engine, &files).await.is_err());
        assert_eq!(engine.asked().len(), 1);
        assert!(parse("{}", &files).is_err());
    }
}
