//! Server-sent events as they come over the network, in pieces of any size.

use memchr::memchr2;

/// Bytes of an event at most, with its line that is not over yet.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// An event has more bytes than are kept of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than 1 MiB")]
pub(super) struct TooLong;

/// Reads the data of events; their names and ids are not looked at.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// What there is of the present line.
    line: Vec<u8>,
    /// The data of the present event, a line of it after the other.
    data: Option<Vec<u8>>,
    /// The last byte was a carriage return: a line feed after it ends no line of its own.
    is_after_return: bool,
    /// A byte order mark may stand before the first line.
    is_begun: bool,
}

impl EventReader {
    /// The data of the events that end in this piece.
    ///
    /// # Errors
    /// An event is too long; the reader is of no use any more.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        while let Some((&first, rest)) = piece.split_first() {
            if std::mem::take(&mut self.is_after_return) && first == b'\n' {
                piece = rest;
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', piece) else {
                self.extend(piece)?;
                break;
            };
            let (line, rest) = piece.split_at(end);
            self.extend(line)?;
            self.is_after_return = rest.first() == Some(&b'\r');
            piece = rest.get(1..).unwrap_or_default();
            events.extend(self.end_line());
        }
        Ok(events)
    }

    /// The data of an event after which the stream ended without an empty line.
    pub(super) fn finish(&mut self) -> Option<String> {
        self.end_line().or_else(|| self.end_line())
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLong> {
        let kept = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
        if kept + part.len() > MAX_EVENT_BYTES {
            return Err(TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    /// The data of the event that ends with the present line, if it is empty.
    fn end_line(&mut self) -> Option<String> {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if !std::mem::replace(&mut self.is_begun, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            let data = self.data.take()?;
            return Some(String::from_utf8_lossy(&data).into_owned());
        }
        if let Some(value) = data_of(line) {
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            }
        }
        None
    }
}

/// The value of a field `data`; none of comments and other fields.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [] => Some(b""),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<String> {
        let mut reader = EventReader::default();
        let mut events: Vec<String> = pieces
            .iter()
            .flat_map(|piece| reader.push(piece).unwrap())
            .collect();
        events.extend(reader.finish());
        events
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        for (text, expected) in [
            ("data: one\n\ndata:two\n\n", vec!["one", "two"]),
            (
                "data: one\r\n\r\ndata: two\r\rdata: three\n\n",
                vec!["one", "two", "three"],
            ),
            ("data: a\r\ndata: b\r\rdata: c\n\n", vec!["a\nb", "c"]),
            ("data: a\ndata:  b\ndata\ndata:\n\n", vec!["a\n b\n\n"]),
            (
                ": comment\nevent: x\nid: 1\n\ndata: {\"ü\":1}\n\n\n\n",
                vec!["{\"ü\":1}"],
            ),
            ("\u{feff}data: marked\n\n", vec!["marked"]),
            ("database: 1\n\ndata\n\n", vec![""]),
            ("data: without an end", vec!["without an end"]),
            ("data: without an empty line\n", vec!["without an empty line"]),
            ("", vec![]),
        ] {
            assert_eq!(read(&[text.as_bytes()]), expected, "{text:?}");
        }
    }

    #[test]
    fn an_event_that_does_not_end_is_not_kept_for_ever() {
        for piece in ["x".repeat(100_000), format!("data: {}\n", "x".repeat(100_000))] {
            let mut reader = EventReader::default();
            let refused = (0..20).any(|_| reader.push(piece.as_bytes()).is_err());
            assert!(refused, "{}", reader.line.len());
            assert!(reader.line.len() + reader.data.map_or(0, |data| data.len()) <= MAX_EVENT_BYTES + 1);
        }
    }

    #[test]
    fn many_small_events_are_no_large_one() {
        let piece = format!("data: {}\n\n", "x".repeat(100_000));
        let mut reader = EventReader::default();
        for _ in 0..50 {
            assert_eq!(reader.push(piece.as_bytes()).unwrap().len(), 1);
        }
    }

    proptest! {
        #[test]
        fn however_the_bytes_are_split_the_events_are_the_same(
            text in "(data: ?[a-zé{}:]{0,8}|:[a-z]*|id: 1|)((\r\n|\n|\r)(data: ?[a-zé{}:]{0,8}|:[a-z]*|id: 1|)){0,12}",
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[bytes]));
        }

        #[test]
        fn any_bytes_are_read_without_panic_and_one_by_one_as_well(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&single), read(&[&bytes]));
        }
    }
}
