//! Finds free ports.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// A loopback port nobody listens on at this moment.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free loopback port")?;
    Ok(listener.local_addr()?.port())
}
