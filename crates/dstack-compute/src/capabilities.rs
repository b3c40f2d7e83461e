/// What a backend can do beyond offers (feature mix-ins of dstack 0.22.5's `Compute` classes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Machines on which the shim runs; otherwise containers only, one job each.
    pub create_instance: bool,
    /// Several nodes that reach each other.
    pub multinode: bool,
    /// Privileged containers.
    pub privileged: bool,
    /// Folders of the instance as volumes.
    pub instance_volumes: bool,
    /// Reserved capacity.
    pub reservations: bool,
    /// Groups of machines placed close to each other.
    pub placement_groups: bool,
    /// Several machines created as one.
    pub compute_groups: bool,
    /// Network volumes.
    pub volumes: bool,
    /// Gateways.
    pub gateways: bool,
}
