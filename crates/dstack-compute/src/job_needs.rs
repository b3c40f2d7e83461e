/// What a job gets on machines of one type beside what it asks for, so that it can use what they have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobNeeds {
    /// Folders of the machine that its container sees.
    pub mounts: &'static [MountedPath],
    /// Device nodes by which its container gets the GPUs, under the same paths. Empty: the container engine gives them.
    pub gpu_devices: &'static [&'static str],
    /// The network adapter is an Elastic Fabric Adapter, which needs libraries in the container's image.
    pub has_efa: bool,
}

impl JobNeeds {
    /// Those of machines on which jobs get what they ask for alone.
    pub const NONE: Self = Self {
        mounts: &[],
        gpu_devices: &[],
        has_efa: false,
    };
}

/// A folder of a machine, and where containers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountedPath {
    /// Path on the machine.
    pub on_machine: &'static str,
    /// Path in containers.
    pub in_container: &'static str,
}

impl MountedPath {
    /// At the same path in containers.
    pub const fn same(path: &'static str) -> Self {
        Self::at(path, path)
    }

    /// At this path in containers.
    pub const fn at(on_machine: &'static str, in_container: &'static str) -> Self {
        Self {
            on_machine,
            in_container,
        }
    }
}
