//! The whole control plane in one process: virtual time, faults, invariants.
