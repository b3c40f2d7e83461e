//! GPUs of this machine: found once at start (dstack 0.22.5's rules).

mod amd;
mod intel;
mod lock;
mod nvidia;
mod tenstorrent;

use std::fmt;
use std::path::{Path, PathBuf};

pub use lock::{GpuLock, NoCapacity};

use crate::command::Commands;

/// Whose GPUs they are. One machine has GPUs of one vendor only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// The machine has no GPU.
    #[default]
    None,
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel Gaudi.
    Intel,
    /// Tenstorrent.
    Tenstorrent,
}

impl Vendor {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
            Self::Intel => "intel",
            Self::Tenstorrent => "tenstorrent",
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A GPU of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// As the vendor's tool prints it; the server normalises it.
    pub name: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// What is locked and handed to the container: a UUID, a device node or an index, by vendor.
    pub id: String,
    /// As the vendor's tool prints it; empty when not reported.
    pub driver_version: String,
}

/// All GPUs of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Vendor of all GPUs.
    pub vendor: Vendor,
    /// In host order. Empty with a vendor: its tool failed.
    pub list: Vec<Gpu>,
}

/// The files GPU detection looks at.
pub trait HostFiles: Send + Sync {
    /// Whether the path exists.
    fn exists(&self, path: &str) -> bool;
    /// What a link finally points to; `None` when it does not resolve.
    fn resolve(&self, path: &str) -> Option<PathBuf>;
    /// The text of a small file.
    fn read(&self, path: &str) -> Option<String>;
}

/// The machine's own files.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemFiles;

impl HostFiles for SystemFiles {
    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn resolve(&self, path: &str) -> Option<PathBuf> {
        fs_err::canonicalize(path).ok()
    }

    fn read(&self, path: &str) -> Option<String> {
        fs_err::read_to_string(path).ok()
    }
}

/// Which vendor's device nodes are there. The first hit wins: the ambiguous paths (an AMD iGPU beside an NVIDIA
/// card, NPUs) come last.
pub fn probe(files: &dyn HostFiles) -> Vendor {
    if files.exists("/dev/nvidiactl")
        || (files.exists("/dev/dxg") && files.exists("/usr/lib/wsl/lib/nvidia-smi"))
    {
        Vendor::Nvidia
    } else if files.exists("/dev/tenstorrent") {
        Vendor::Tenstorrent
    } else if files.exists("/dev/kfd") {
        Vendor::Amd
    } else if files.exists("/dev/accel") {
        Vendor::Intel
    } else {
        Vendor::None
    }
}

/// Finds the GPUs. A failing vendor tool is logged and gives an empty list: the machine is still usable.
pub async fn detect(commands: &dyn Commands, files: &dyn HostFiles) -> Gpus {
    let vendor = probe(files);
    let found = match vendor {
        Vendor::None => Ok(Vec::new()),
        Vendor::Nvidia => nvidia::detect(commands).await,
        Vendor::Amd => amd::detect(commands, files).await,
        Vendor::Intel => intel::detect(commands).await,
        Vendor::Tenstorrent => tenstorrent::detect(commands, files).await,
    };
    let list = found.unwrap_or_else(|error| {
        tracing::warn!(gpu.vendor = %vendor, error = %crate::error::chain(&error), "cannot list the GPUs");
        Vec::new()
    });
    Gpus { vendor, list }
}

/// Why the vendor's tool gave no list.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// The tool could not be run.
    #[error("the vendor's tool gave no answer")]
    Command(#[from] crate::command::CommandError),
    /// The tool failed.
    #[error("{tool} ended with exit code {code:?}: {stderr}")]
    Failed {
        /// Name of the program.
        tool: &'static str,
        /// Its exit code.
        code: Option<i32>,
        /// What it said.
        stderr: String,
    },
    /// The answer cannot be read.
    #[error("{tool} printed something unexpected: {what}")]
    Unexpected {
        /// Name of the program.
        tool: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

/// Fails unless the tool ended with exit code 0.
fn stdout_of(tool: &'static str, output: crate::command::Output) -> Result<String, DetectError> {
    if output.success() {
        Ok(output.stdout)
    } else {
        Err(DetectError::Failed {
            tool,
            code: output.code,
            stderr: output.stderr.trim().to_owned(),
        })
    }
}

/// Lines of comma-separated fields, trimmed.
fn rows(text: &str) -> impl Iterator<Item = Vec<String>> {
    csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(std::io::Cursor::new(text.to_owned()))
        .into_records()
        .filter_map(Result::ok)
        .map(|record| record.iter().map(str::to_owned).collect())
}

/// Drivers print placeholders where they know nothing.
fn known_version(text: &str) -> String {
    const PLACEHOLDERS: [&str; 6] = [
        "n/a",
        "[n/a]",
        "unknown",
        "[unknown]",
        "[not supported]",
        "[not available]",
    ];
    let text = text.trim();
    if PLACEHOLDERS.contains(&text.to_ascii_lowercase().as_str()) {
        String::new()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;
    use std::collections::HashMap;

    /// A machine made of paths: target for links, text for files.
    #[derive(Default)]
    pub(crate) struct FakeFiles(pub(crate) HashMap<&'static str, &'static str>);

    impl HostFiles for FakeFiles {
        fn exists(&self, path: &str) -> bool {
            self.0.contains_key(path)
        }

        fn resolve(&self, path: &str) -> Option<PathBuf> {
            self.0.get(path).map(PathBuf::from)
        }

        fn read(&self, path: &str) -> Option<String> {
            self.0.get(path).map(|text| (*text).to_owned())
        }
    }

    pub(crate) fn files<const N: usize>(entries: [(&'static str, &'static str); N]) -> FakeFiles {
        FakeFiles(HashMap::from(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::fake::files;
    use super::*;
    use crate::command::recorded::Recorded;

    #[test]
    fn the_first_vendor_found_wins() {
        assert_eq!(probe(&files([])), Vendor::None);
        assert_eq!(
            probe(&files([("/dev/nvidiactl", ""), ("/dev/kfd", "")])),
            Vendor::Nvidia
        );
        assert_eq!(probe(&files([("/dev/dxg", "")])), Vendor::None);
        assert_eq!(
            probe(&files([("/dev/dxg", ""), ("/usr/lib/wsl/lib/nvidia-smi", "")])),
            Vendor::Nvidia
        );
        assert_eq!(
            probe(&files([("/dev/tenstorrent", ""), ("/dev/kfd", "")])),
            Vendor::Tenstorrent
        );
        assert_eq!(probe(&files([("/dev/kfd", ""), ("/dev/accel", "")])), Vendor::Amd);
        assert_eq!(probe(&files([("/dev/accel", "")])), Vendor::Intel);
    }

    #[tokio::test]
    async fn a_failing_tool_gives_an_empty_list() {
        let found = detect(&Recorded::default(), &files([("/dev/nvidiactl", "")])).await;
        assert_eq!(
            found,
            Gpus {
                vendor: Vendor::Nvidia,
                list: vec![]
            }
        );
    }

    #[test]
    fn placeholders_are_no_versions() {
        for text in ["N/A", "[N/A]", " unknown", "[Not Supported]", "[not available]"] {
            assert_eq!(known_version(text), "", "{text}");
        }
        assert_eq!(known_version(" 570.86.15 "), "570.86.15");
    }
}
