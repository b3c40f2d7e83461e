//! Who is at the other end of a Unix socket of this machine.
//!
//! A socket's path may be guessed, and somebody else may sit there first. The kernel tells whose process it is.

use std::io;

use tokio::net::UnixStream;

/// Fails unless the process at the other end is of this process's user, or of root, which may do everything anyway.
pub fn check(stream: &UnixStream) -> io::Result<()> {
    let (peer, own) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if is_trusted(peer, own) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("the process at the other end of the socket is of user {peer}, not of user {own}"),
    ))
}

const fn is_trusted(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_are_not_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000) && is_trusted(0, 0));
        assert!(!is_trusted(1001, 1000) && !is_trusted(65534, 0));
    }

    #[tokio::test]
    async fn both_ends_of_a_socket_within_this_process_are_ours() {
        let (one, other) = UnixStream::pair().unwrap();
        check(&one).unwrap();
        check(&other).unwrap();
    }
}
