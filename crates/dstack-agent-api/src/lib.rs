//! The HTTP APIs of shim and runner: types, routes and clients.
