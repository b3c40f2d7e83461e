//! Load generation.
