//! Derive macro for the wire and YAML types of dstack-model.
