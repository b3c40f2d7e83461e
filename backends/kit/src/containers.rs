/// A container that an emulated cloud is asked for, as far as it takes to run it.
#[derive(Debug, Clone, Default)]
pub struct ContainerStart {
    /// By what the cloud knows it.
    pub id: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables besides `PATH` and `HOME`.
    pub env: Vec<(String, String)>,
    /// Paths, and what is there.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Runs the containers of an emulated cloud for real.
pub trait Containers: Send + Sync {
    /// Starts one; its IP address. `None`: it cannot be run.
    fn start(&self, container: &ContainerStart) -> Option<String>;

    /// How the program of a container has ended; `None`: it runs.
    fn exit_status(&self, id: &str) -> Option<i32>;

    /// Ends a container with all that runs in it, and removes it.
    fn end(&self, id: &str);
}
