//! What `dstack` is made of: for the program itself, and for test servers with doubles in place of clouds.

mod backends;
mod local_machine;
mod logging;
mod protected_paths;
mod server;

pub use server::server;
