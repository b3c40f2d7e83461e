//! SFTP (protocol version 3, as OpenSSH speaks it) on standard input and output.
//!
//! Runs in a helper process with the rights of the logged-in user, so that the kernel checks every access. Blocking and
//! byte-exact: paths need not be UTF-8.

mod files;
mod wire;

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use files::Files;
use wire::{Body, Reply, Request, Status};

/// Largest packet in either direction: OpenSSH's.
const MAX_PACKET: u32 = 256 * 1024;
/// Largest payload of one read or write: leaves room for the packet's head, as OpenSSH does.
const MAX_DATA: u32 = MAX_PACKET - 1024;

/// Serves until end of input. To be called by the helper process (see `SshOptions::sftp_server`).
pub fn serve_stdio() -> io::Result<()> {
    serve(io::stdin().lock(), io::stdout().lock())
}

/// Serves one client; pure but for the files it touches.
fn serve(input: impl Read, output: impl Write) -> io::Result<()> {
    let mut input = BufReader::with_capacity(MAX_PACKET as usize, input);
    let mut output = BufWriter::with_capacity(MAX_PACKET as usize, output);
    let mut files = Files::default();
    while let Some(packet) = read_packet(&mut input)? {
        let reply = answer(&mut files, &packet);
        output.write_all(&reply.encode())?;
        // Requests come in bursts; answer a burst at once.
        if input.buffer().is_empty() {
            output.flush()?;
        }
    }
    output.flush()
}

fn read_packet(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length == 0 || length > MAX_PACKET {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "SFTP packet of impossible length",
        ));
    }
    let mut packet = vec![0; length as usize];
    input.read_exact(&mut packet)?;
    Ok(Some(packet))
}

fn answer(files: &mut Files, packet: &[u8]) -> Reply {
    match wire::parse(packet) {
        Some((id, Request::Init)) => Reply {
            id,
            body: Body::Version,
        },
        Some((id, request)) => Reply {
            id,
            body: files.perform(request).unwrap_or_else(Body::Status),
        },
        None => Reply {
            id: wire::request_id(packet),
            body: Body::Status(Status::BadMessage),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn talk(packets: &[Vec<u8>]) -> Vec<u8> {
        let input: Vec<u8> = packets
            .iter()
            .flat_map(|packet| [&u32::try_from(packet.len()).unwrap().to_be_bytes()[..], packet].concat())
            .collect();
        let mut output = Vec::new();
        serve(input.as_slice(), &mut output).unwrap();
        output
    }

    #[test]
    fn hello() {
        let output = talk(&[vec![1, 0, 0, 0, 3]]);
        assert_eq!(output[4..9], [2, 0, 0, 0, 3]);
    }

    #[test]
    fn unknown_requests_and_short_packets_get_a_status() {
        for packet in [
            vec![99, 0, 0, 0, 7],
            vec![3, 0, 0, 0, 7],
            vec![3, 0, 0, 0, 7, 255, 255, 255, 255],
        ] {
            let output = talk(std::slice::from_ref(&packet));
            assert_eq!(output[4], 101, "{packet:?}");
            assert_eq!(output[5..9], [0, 0, 0, 7], "{packet:?}");
        }
    }

    proptest! {
        #[test]
        fn no_packet_breaks_the_server(body in proptest::collection::vec(any::<u8>(), 0..40), kind in 4u8..13) {
            // Kinds that only work on handles, which a fresh server does not have: nothing on disk is touched.
            prop_assume!(!matches!(kind, 7 | 9 | 11));
            let output = talk(&[[vec![kind], body].concat()]);
            prop_assert_eq!(output[4], 101);
        }
    }
}
