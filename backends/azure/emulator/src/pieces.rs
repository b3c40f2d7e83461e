//! What is made with a machine: network interfaces, addresses, disks.

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Answer, Ask, Azure, Done, SUBSCRIPTION, bad, conflict, missing, ok};

/// A piece of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) group: String,
    /// As in ids.
    pub(crate) collection: &'static str,
    pub(crate) name: String,
    pub(crate) region: Value,
    pub(crate) tags: Value,
    /// Name of the machine; empty: of none any more.
    pub(crate) machine: String,
    /// What it consists of, or is used by.
    pub(crate) with: Option<String>,
    pub(crate) ends_with_it: bool,
    pub(crate) made_at: Instant,
    pub(crate) listed_at: Instant,
    pub(crate) gone_at: Option<Instant>,
}

impl Piece {
    /// As inventories have it.
    pub(crate) fn id(&self) -> String {
        self.path()
    }

    pub(crate) fn path(&self) -> String {
        let provider = if self.collection == "disks" {
            "Compute"
        } else {
            "Network"
        };
        format!(
            "/subscriptions/{SUBSCRIPTION}/resourceGroups/{}/providers/Microsoft.{provider}/{}/{}",
            self.group, self.collection, self.name
        )
    }

    fn to_json(&self, starts: std::time::Duration) -> Value {
        let has_address = self.made_at.elapsed() >= starts / 2;
        let properties = match self.collection {
            "networkInterfaces" => {
                let mut ip = json!({"provisioningState": "Succeeded", "privateIPAddress": "10.0.0.7", "primary": true});
                if let Some(address) = &self.with {
                    ip["publicIPAddress"] = json!({"id": address});
                }
                json!({"provisioningState": "Succeeded", "ipConfigurations": [{"name": "ip_config", "properties": ip}]})
            }
            "publicIPAddresses" => {
                let mut told =
                    json!({"provisioningState": "Succeeded", "publicIPAllocationMethod": "Static"});
                if has_address {
                    told["ipAddress"] = "203.0.113.77".into();
                }
                told
            }
            _ => {
                json!({"provisioningState": "Succeeded", "diskState": if self.machine.is_empty() { "Unattached" } else { "Attached" }})
            }
        };
        let mut told =
            json!({"id": self.path(), "name": self.name, "location": self.region, "properties": properties});
        if !self.tags.is_null() {
            told["tags"] = self.tags.clone();
        }
        told
    }
}

/// The machine of somebody else to which disks are attached.
const ELSEWHERE: &str = "elsewhere";

impl Azure {
    /// Somebody attaches the disk of a machine to another one, where it stays.
    pub fn attach_elsewhere(&self, name: &str) {
        for piece in &mut self.lock().pieces {
            if piece.collection == "disks" && piece.machine == name {
                ELSEWHERE.clone_into(&mut piece.machine);
            }
        }
    }

    /// Disks are not attached elsewhere any more.
    pub fn detach_all(&self) {
        for piece in &mut self.lock().pieces {
            if piece.machine == ELSEWHERE {
                piece.machine.clear();
            }
        }
    }

    pub(crate) fn pieces(&self, ask: &Ask<'_>, group: &str, collection: &str, rest: &[&str]) -> Answer {
        ask.version(match collection {
            "disks" => &["2026-03-02"],
            _ => &["2024-03-01"],
        })?;
        let mut state = self.lock();
        let (now, times) = (Instant::now(), self.0.times);
        let is_of = |piece: &Piece| {
            piece.collection.eq_ignore_ascii_case(collection)
                && (group.is_empty() || piece.group.eq_ignore_ascii_case(group))
                && piece.listed_at <= now
        };
        match (ask.method, rest) {
            ("GET", []) => {
                let all = state.pieces.iter().filter(|piece| is_of(piece));
                ask.page(
                    all.map(|piece| piece.to_json(times.starts)).collect(),
                    Self::page(&state),
                    false,
                )
            }
            ("GET", [name]) => {
                let found = state
                    .pieces
                    .iter()
                    .find(|piece| is_of(piece) && piece.name == *name);
                let found = found.ok_or_else(|| missing(ask.path))?;
                Ok(ok(found.to_json(times.starts)))
            }
            ("DELETE", [name]) => {
                let Some(at) = state
                    .pieces
                    .iter()
                    .position(|piece| is_of(piece) && piece.name == *name)
                else {
                    return Ok(Done {
                        status: StatusCode::NO_CONTENT,
                        ..ok(Value::Null)
                    });
                };
                let piece = &state.pieces[at];
                let user = (collection == "publicipaddresses").then(|| piece.path());
                let is_used =
                    user.is_some_and(|id| state.pieces.iter().any(|one| one.with.as_ref() == Some(&id)));
                match collection {
                    "networkinterfaces" if !piece.machine.is_empty() => {
                        return Err(bad(
                            "NicInUse",
                            "The network interface is used by a virtual machine.",
                        ));
                    }
                    "publicipaddresses" if is_used => {
                        return Err(bad(
                            "PublicIPAddressCannotBeDeleted",
                            "The address is still allocated.",
                        ));
                    }
                    "disks" if !piece.machine.is_empty() => {
                        return Err(conflict(
                            "OperationNotAllowed",
                            "The disk is attached to a virtual machine.",
                        ));
                    }
                    _ => {}
                }
                state.pieces[at].gone_at.get_or_insert(now + times.else_takes);
                Ok(Done {
                    status: StatusCode::ACCEPTED,
                    ..ok(Value::Null)
                })
            }
            _ => Err(missing(ask.path)),
        }
    }
}
