/// What a backend can do beyond offers (feature mix-ins of dstack 0.22.5's `Compute` classes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Machines on which the shim runs; otherwise containers only, one job each.
    pub create_instance: bool,
    /// Several nodes that reach each other.
    pub multinode: bool,
    /// Containers with all rights on their host (`privileged: true`).
    pub privileged: bool,
    /// Folders of the instance as volumes.
    pub instance_volumes: bool,
    /// Instances of reserved capacity (`reservation`).
    pub reservations: bool,
    /// Groups of machines placed close to each other.
    pub placement_groups: bool,
    /// Several machines created as one.
    pub compute_groups: bool,
    /// Network volumes, see [`Volumes`](crate::Volumes).
    pub volumes: bool,
    /// Machines for gateways, see [`GatewayMachine`](crate::GatewayMachine).
    pub gateways: bool,
    /// Such machines without a public address (`public_ip: false`).
    pub private_gateways: bool,
    /// Load balancers before such machines (`load_balancer`), see [`LoadBalancer`](crate::LoadBalancer).
    pub load_balancers: bool,
}
