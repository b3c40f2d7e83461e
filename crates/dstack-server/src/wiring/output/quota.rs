//! How much output of a job is stored.

use std::time::Duration;

use dstack_engine::Piece;

const HOUR: Duration = Duration::from_secs(3600);

/// What has been stored of a job since this server began to read its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Used {
    bytes: u64,
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
            let bytes = self.bytes.saturating_add(piece.bytes.len() as u64);
            if bytes <= limit {
                self.bytes = bytes;
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
        let piece = |timestamp| Piece {
            timestamp,
            bytes: vec![b'x'; 10],
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
        let (admitted, used) = Used::default().admit(20, new, pieces(6));
        assert_eq!(texts(&admitted), ["x", "x", "x", "x", "left out"]);
        let timestamps: Vec<i64> = admitted.iter().map(|piece| piece.timestamp).collect();
        assert_eq!(timestamps, [1, 2, 3, 4, 5]);
        let (admitted, used) = used.admit(20, new, pieces(3));
        assert!(admitted.is_empty());
        // An hour later there is room again, and then none.
        let (admitted, _) = used.admit(20, HOUR, pieces(4));
        assert_eq!(texts(&admitted), ["x", "x", "left out"]);
    }

    #[test]
    fn a_job_that_keeps_to_its_quota_loses_nothing_that_comes_late() {
        // Of five hours, all at once.
        let (admitted, _) = Used::default().admit(20, 5 * HOUR, pieces(10));
        assert_eq!(admitted, pieces(10));
    }
}
