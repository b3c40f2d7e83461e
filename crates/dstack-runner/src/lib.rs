//! Job agent: prepares code, runs commands, streams logs, serves SSH.
