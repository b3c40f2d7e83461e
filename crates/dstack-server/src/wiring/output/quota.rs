//! How much output of a job is stored.

use std::time::Duration;

use dstack_engine::Piece;

const HOUR: Duration = Duration::from_secs(3600);

/// Bytes of quota for each piece: what stores keep of a piece besides its text must be bounded, too.
const BYTES_PER_PIECE: u64 = 16;

/// What has been stored of a job since this server began to read its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Used {
    bytes: u64,
    pieces: u64,
    /// Nothing more is stored as long as the limit is this one.
    full_at: Option<u64>,
}

impl Used {
    /// The pieces that fit into `quota` bytes an hour for a job of this age, and what is used with them. In place of the first
    /// one that does not fit the log says so, and nothing follows until there is room again.
    ///
    /// The runner counts by hours since the job was handed to it, and keeps what it cannot deliver: what comes now may be of
    /// all the hours so far. A job that keeps to its quota never has more than this, whenever its output comes.
    pub(super) fn admit(mut self, quota: u64, age: Duration, pieces: Vec<Piece>) -> (Vec<Piece>, Self) {
        // The hour that has begun, and one for clocks that differ.
        let hours = age.as_secs() / HOUR.as_secs() + 2;
        let limit = quota.saturating_mul(hours);
        let mut admitted = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if self.full_at == Some(limit) {
                break;
            }
            if piece.bytes.is_empty() {
                continue;
            }
            let bytes = self.bytes.saturating_add(piece.bytes.len() as u64);
            let pieces = self.pieces.saturating_add(1);
            if bytes <= limit && pieces <= limit.div_ceil(BYTES_PER_PIECE) {
                (self.bytes, self.pieces) = (bytes, pieces);
                admitted.push(piece);
            } else {
                self.full_at = Some(limit);
                let text = format!(
                    "[output is left out here: the job has used up its quota of {quota} bytes an hour]\n"
                );
                admitted.push(Piece {
                    timestamp: piece.timestamp,
                    bytes: text.into_bytes(),
                });
            }
        }
        (admitted, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(count: i64) -> Vec<Piece> {
        pieces_of(count, 20)
    }

    fn pieces_of(count: i64, size: usize) -> Vec<Piece> {
        let piece = |timestamp| Piece {
            timestamp,
            bytes: vec![b'x'; size],
        };
        (1..=count).map(piece).collect()
    }

    fn texts(admitted: &[Piece]) -> Vec<&str> {
        let text = |piece: &'_ Piece| -> &str {
            match piece.bytes.first() {
                Some(b'x') => "x",
                _ => "left out",
            }
        };
        admitted.iter().map(text).collect()
    }

    #[test]
    fn what_is_too_much_is_left_out_and_the_log_says_so_once() {
        let new = Duration::ZERO;
        let (admitted, used) = Used::default().admit(40, new, pieces(6));
        assert_eq!(texts(&admitted), ["x", "x", "x", "x", "left out"]);
        let timestamps: Vec<i64> = admitted.iter().map(|piece| piece.timestamp).collect();
        assert_eq!(timestamps, [1, 2, 3, 4, 5]);
        let (admitted, used) = used.admit(40, new, pieces(3));
        assert!(admitted.is_empty());
        // An hour later there is room again, and then none.
        let (admitted, _) = used.admit(40, HOUR, pieces(4));
        assert_eq!(texts(&admitted), ["x", "x", "left out"]);
    }

    #[test]
    fn tiny_pieces_cost_more_than_their_text() {
        let (admitted, _) = Used::default().admit(160, Duration::ZERO, pieces_of(1000, 1));
        assert_eq!(admitted.len(), 2 * 160 / 16 + 1, "and the line that says so");
        let (admitted, used) = Used::default().admit(160, Duration::ZERO, pieces_of(1000, 0));
        assert_eq!(
            (admitted.len(), used),
            (0, Used::default()),
            "nothing is stored of nothing"
        );
    }

    #[test]
    fn a_job_that_keeps_to_its_quota_loses_nothing_that_comes_late() {
        // Of five hours, all at once.
        let (admitted, _) = Used::default().admit(40, 5 * HOUR, pieces(10));
        assert_eq!(admitted, pieces(10));
    }
}
