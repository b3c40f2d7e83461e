//! The job's raw terminal output, for `/logs_ws`: in `job.log` on disk, of which the end is kept.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fs_err::os::unix::fs::OpenOptionsExt;
use tokio::sync::watch;

use dstack_system::clock::SharedClock;

/// Largest frame, as the chunks that dstack 0.22.5 captures.
pub const MAX_FRAME_BYTES: usize = 32 * 1024;

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Bytes written so far.
    pub end: u64,
    /// Whether nothing follows.
    pub finished: bool,
}

/// The raw output of a job. Cheap to clone.
#[derive(Debug, Clone)]
pub struct History {
    inner: Arc<Mutex<Inner>>,
    extent: Arc<watch::Sender<Extent>>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    clock: SharedClock,
    // A part is closed at this size; there are two at most.
    part_bytes: u64,
    parts: VecDeque<Part>,
    end: u64,
    // The second of writing and the offset where it began, oldest first.
    seconds: VecDeque<(i64, u64)>,
}

#[derive(Debug, Clone)]
struct Part {
    base: u64,
    file: Arc<std::fs::File>,
}

impl History {
    /// An empty history in `path` (and `path` with `.1` for the part before). `limit`: bytes on disk.
    pub fn create(path: &Path, limit: u64, clock: SharedClock) -> io::Result<Self> {
        let mut inner = Inner {
            path: path.to_owned(),
            clock,
            part_bytes: (limit / 2).max(1),
            parts: VecDeque::new(),
            end: 0,
            seconds: VecDeque::new(),
        };
        inner.new_part()?;
        Ok(Self {
            inner: Arc::new(Mutex::new(inner)),
            extent: Arc::default(),
        })
    }

    /// Appends output. Blocking. What cannot be written is left out: the spool marks losses, this is for watching.
    pub fn append(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        if inner.append(bytes).is_ok() {
            self.extent.send_modify(|extent| extent.end = inner.end);
        }
    }

    /// Says that nothing follows.
    pub fn finish(&self) {
        self.extent.send_modify(|extent| extent.finished = true);
    }

    /// Follows how much there is.
    pub fn watch(&self) -> watch::Receiver<Extent> {
        self.extent.subscribe()
    }

    /// Where the first output of this second (since the epoch) or a later one begins; `None`: there is none yet.
    pub fn offset_at(&self, second: i64) -> Option<u64> {
        let inner = self.lock();
        let at = inner.seconds.partition_point(|(written, _)| *written < second);
        inner.seconds.get(at).map(|(_, offset)| *offset)
    }

    /// Up to [`MAX_FRAME_BYTES`] at the offset, which moves on; empty at the end. Blocking. Starts at what is still there.
    pub fn read(&self, offset: &mut u64) -> io::Result<Vec<u8>> {
        let (part, end) = self.lock().part_at(offset);
        let left = usize::try_from(end - *offset).unwrap_or(usize::MAX);
        let mut frame = vec![0; left.min(MAX_FRAME_BYTES)];
        if let Some(part) = part {
            part.file.read_exact_at(&mut frame, *offset - part.base)?;
        }
        *offset += frame.len() as u64;
        Ok(frame)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self
            .parts
            .back()
            .is_none_or(|part| self.end - part.base >= self.part_bytes)
        {
            self.new_part()?;
        }
        if let Some(part) = self.parts.back() {
            part.file.write_all_at(bytes, self.end - part.base)?;
        }
        let second = self.clock.now().as_millis().div_euclid(1000);
        if self.seconds.back().is_none_or(|(last, _)| *last < second) {
            self.seconds.push_back((second, self.end));
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn new_part(&mut self) -> io::Result<()> {
        if !self.parts.is_empty() {
            fs_err::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        let mut options = fs_err::OpenOptions::new();
        options
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .mode(0o600);
        let file = Arc::new(options.open(&self.path)?.into_file());
        self.parts.push_back(Part { base: self.end, file });
        if self.parts.len() > 2 {
            self.parts.pop_front();
        }
        let first = self.parts.front().map_or(0, |part| part.base);
        while self.seconds.get(1).is_some_and(|(_, offset)| *offset <= first) {
            self.seconds.pop_front();
        }
        Ok(())
    }

    /// The part that holds the offset, and where reading it ends; moves an offset that is gone to the first one left.
    fn part_at(&self, offset: &mut u64) -> (Option<Part>, u64) {
        *offset = (*offset)
            .max(self.parts.front().map_or(0, |part| part.base))
            .min(self.end);
        let next = self
            .parts
            .iter()
            .position(|part| part.base > *offset)
            .unwrap_or(self.parts.len());
        let part = next.checked_sub(1).and_then(|at| self.parts.get(at)).cloned();
        (part, self.parts.get(next).map_or(self.end, |part| part.base))
    }
}

#[cfg(test)]
mod tests {
    use dstack_system::SystemClock;
    use dstack_units::Time;

    use super::*;

    #[derive(Debug)]
    struct Hand(Mutex<i64>);

    impl dstack_system::Clock for Hand {
        fn now(&self) -> Time {
            Time::from_millis(*self.0.lock().unwrap())
        }
    }

    fn rest(history: &History, mut offset: u64) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let frame = history.read(&mut offset).unwrap();
            if frame.is_empty() {
                return all;
            }
            all.extend(frame);
        }
    }

    #[test]
    fn reads_back_from_any_offset_and_second() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(Hand(Mutex::new(10_500)));
        let history = History::create(&dir.path().join("job.log"), 1 << 20, clock.clone()).unwrap();
        history.append(b"ab");
        history.append(b"c");
        *clock.0.lock().unwrap() = 12_000;
        history.append(b"de");
        assert_eq!(rest(&history, 0), b"abcde");
        assert_eq!(rest(&history, 4), b"e");
        assert_eq!(rest(&history, 99), b"");
        let from = |second| rest(&history, history.offset_at(second).unwrap());
        assert_eq!(
            (from(0), from(10), from(11), from(12)),
            (
                b"abcde".to_vec(),
                b"abcde".to_vec(),
                b"de".to_vec(),
                b"de".to_vec()
            )
        );
        assert_eq!(history.offset_at(13), None);
    }

    #[test]
    fn keeps_the_end_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.log");
        let history = History::create(&path, 20_000, Arc::new(SystemClock)).unwrap();
        let mut all = Vec::new();
        for n in 0..10_000u32 {
            let line = format!("line {n}\n").into_bytes();
            history.append(&line);
            all.extend(line);
        }
        let on_disk: u64 = fs_err::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(on_disk < 21_000, "{on_disk}");
        let kept = rest(&history, 0);
        assert!(kept.len() >= 10_000 && all.ends_with(&kept), "{}", kept.len());
    }
}
