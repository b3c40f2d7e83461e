//! Reconcilers and operations: executes what dstack-plan decides.
