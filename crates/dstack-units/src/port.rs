//! Port mappings: `8080`, `80:8080`, `*:8080`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::ParseError;

/// A container port, and the local port that it is forwarded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct PortMapping {
    /// Any free port when `None`.
    pub local_port: Option<u16>,
    /// Port in the container, 1 to 65535.
    pub container_port: u16,
}

/// A port text taken apart. `local` is the same number as the container's when it was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortTokens {
    /// The local port, `None` for `*`.
    pub local: Option<i64>,
    /// The container port.
    pub container: i64,
}

/// Takes a port text apart, without looking at the numbers' bounds.
///
/// # Errors
/// Any other form than `N`, `N:N`, `*:N`. The message is the text itself, as in dstack 0.22.5.
pub fn tokens(text: &str) -> Result<PortTokens, ParseError> {
    let refused = || ParseError::new(text);
    let number = |text: &str| -> Result<i64, ParseError> {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refused());
        }
        text.parse().map_err(|_| refused())
    };
    match text.split_once(':') {
        None => {
            let port = number(text)?;
            Ok(PortTokens {
                local: Some(port),
                container: port,
            })
        }
        Some(("*", container)) => Ok(PortTokens {
            local: None,
            container: number(container)?,
        }),
        Some((local, container)) => Ok(PortTokens {
            local: Some(number(local)?),
            container: number(container)?,
        }),
    }
}

impl FromStr for PortMapping {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let PortTokens { local, container } = tokens(text)?;
        let port = |number: i64| {
            u16::try_from(number)
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| ParseError::new(format!("Ports are from 1 to 65535, not {number}")))
        };
        Ok(Self {
            local_port: local.map(port).transpose()?,
            container_port: port(container)?,
        })
    }
}

/// Prints `80:8080`, `*:8080`, `8080` when both are the same.
impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.local_port {
            Some(local) if local == self.container_port => write!(f, "{local}"),
            Some(local) => write!(f, "{local}:{}", self.container_port),
            None => write!(f, "*:{}", self.container_port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        let port: PortMapping = "*:8080".parse().unwrap();
        assert_eq!((port.local_port, port.container_port), (None, 8080));
        for text in ["", "80:", ":80", "a", "0", "70000", "1:2:3", "-1", "8080.0"] {
            assert!(text.parse::<PortMapping>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(local in proptest::option::of(1u16..), container in 1u16..) {
            let port = PortMapping { local_port: local, container_port: container };
            prop_assert_eq!(port.to_string().parse::<PortMapping>().unwrap(), port);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<PortMapping>();
        }
    }
}
