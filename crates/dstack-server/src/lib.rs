//! The server: HTTP handlers, authentication, config.yml; wires the engine.
