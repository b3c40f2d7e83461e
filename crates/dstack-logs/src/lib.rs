//! Where the output of jobs is kept.
