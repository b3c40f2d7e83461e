//! What the requests do to files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid};

use super::wire::{Attributes, Body, Name, OpenFlags, Request, Status, VfsFigures};
use super::{MAX_DATA, MAX_PACKET};

/// Open handles of one session: far more than a client needs, far less than descriptors exist.
const MAX_HANDLES: usize = 512;
/// Entries sent at once.
const DIRECTORY_PIECE: usize = 100;

/// Open files and directories.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: HashMap<u32, Open>,
    next: u32,
}

enum Open {
    File {
        file: File,
        append: bool,
    },
    Directory {
        path: PathBuf,
        entries: Box<dyn Iterator<Item = Vec<u8>>>,
    },
}

/// An error in the protocol's terms.
impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Status::NoSuchFile,
            io::ErrorKind::PermissionDenied => Status::PermissionDenied,
            io::ErrorKind::InvalidInput => Status::BadMessage,
            io::ErrorKind::Unsupported => Status::Unsupported,
            _ => Status::Failure,
        }
    }
}

impl From<rustix::io::Errno> for Status {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl Files {
    /// Performs a request; errors are the answer too.
    pub(super) fn perform(&mut self, request: Request) -> Result<Body, Status> {
        match request {
            Request::Init | Request::Unknown => Err(Status::Unsupported),
            Request::Open(path, flags, attributes) => self.open_file(&path, flags, attributes),
            Request::Close(handle) => self
                .open
                .remove(&handle)
                .map(|_| Body::Status(Status::Ok))
                .ok_or(Status::Failure),
            Request::Read(handle, offset, length) => self.read(handle, offset, length),
            Request::Write(handle, offset, data) => self.write(handle, offset, &data),
            Request::Stat(path) => Ok(Body::Attributes(attributes_of(&fs_err::metadata(path)?))),
            Request::LinkStat(path) => Ok(Body::Attributes(attributes_of(&fs_err::symlink_metadata(path)?))),
            Request::HandleStat(handle) => {
                Ok(Body::Attributes(attributes_of(&self.file(handle)?.metadata()?)))
            }
            Request::SetStat(path, attributes) => done(set_attributes(&path, attributes, AtFlags::empty())),
            Request::LinkSetStat(path, attributes) => {
                done(set_attributes(&path, attributes, AtFlags::SYMLINK_NOFOLLOW))
            }
            Request::HandleSetStat(handle, attributes) => {
                done(set_handle_attributes(self.file(handle)?, attributes))
            }
            Request::OpenDir(path) => self.open_directory(path),
            Request::ReadDir(handle) => self.read_directory(handle),
            Request::Remove(path) => done(remove_file(&path)),
            Request::MakeDir(path, attributes) => {
                let mode = Mode::from_raw_mode(attributes.mode.unwrap_or(0o777) & 0o7777);
                done(Ok(rustix::fs::mkdir(path, mode)?))
            }
            Request::RemoveDir(path) => done(Ok(fs_err::remove_dir(path)?)),
            Request::RealPath(path) => Ok(path_reply(real_path(&path)?)),
            Request::ExpandPath(path) => Ok(path_reply(real_path(&expand(&path)?)?)),
            Request::Rename(from, to) => done(rename_new(&from, &to)),
            Request::Replace(from, to) => done(Ok(fs_err::rename(from, to)?)),
            Request::ReadLink(path) => Ok(path_reply(fs_err::read_link(path)?)),
            Request::SymLink(target, link) => done(Ok(rustix::fs::symlink(target, link)?)),
            Request::HardLink(from, to) => {
                done(Ok(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?))
            }
            Request::Sync(handle) => done(Ok(self.file(handle)?.sync_all()?)),
            Request::StatVfs(path) => Ok(Body::Vfs(figures(&rustix::fs::statvfs(path)?))),
            Request::HandleStatVfs(handle) => {
                Ok(Body::Vfs(figures(&rustix::fs::fstatvfs(self.file(handle)?)?)))
            }
            Request::Limits => {
                let (packet, data) = (u64::from(MAX_PACKET), u64::from(MAX_DATA));
                Ok(Body::Limits([packet, data, data, MAX_HANDLES as u64]))
            }
        }
    }

    fn file(&self, handle: u32) -> Result<&File, Status> {
        match self.open.get(&handle) {
            Some(Open::File { file, .. }) => Ok(file),
            _ => Err(Status::Failure),
        }
    }

    fn keep(&mut self, open: Open) -> Result<Body, Status> {
        if self.open.len() >= MAX_HANDLES {
            return Err(Status::Failure);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.open.insert(handle, open);
        Ok(Body::Handle(handle))
    }

    fn open_file(&mut self, path: &Path, flags: OpenFlags, attributes: Attributes) -> Result<Body, Status> {
        let access = match (flags.read(), flags.write() || flags.append()) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        let mut wanted = access | OFlags::CLOEXEC | OFlags::NOCTTY;
        wanted.set(OFlags::APPEND, flags.append());
        wanted.set(OFlags::CREATE, flags.create());
        wanted.set(OFlags::TRUNC, flags.truncate());
        wanted.set(OFlags::EXCL, flags.create() && flags.exclusive());
        let mode = Mode::from_raw_mode(attributes.mode.unwrap_or(0o666) & 0o7777);
        let file = File::from(rustix::fs::open(path, wanted, mode)?);
        self.keep(Open::File {
            file,
            append: flags.append(),
        })
    }

    fn read(&self, handle: u32, offset: u64, length: u32) -> Result<Body, Status> {
        let mut data = vec![0; length.min(MAX_DATA) as usize];
        let len = self.file(handle)?.read_at(&mut data, offset)?;
        if len == 0 {
            return Err(Status::Eof);
        }
        data.truncate(len);
        Ok(Body::Data(data))
    }

    fn write(&self, handle: u32, offset: u64, data: &[u8]) -> Result<Body, Status> {
        match self.open.get(&handle) {
            Some(Open::File { file, append: true }) => done(Ok(io::Write::write_all(&mut &*file, data)?)),
            Some(Open::File { file, append: false }) => done(Ok(file.write_all_at(data, offset)?)),
            _ => Err(Status::Failure),
        }
    }

    fn open_directory(&mut self, path: PathBuf) -> Result<Body, Status> {
        let listed = fs_err::read_dir(&path)?.filter_map(|entry| Some(entry.ok()?.file_name().into_vec()));
        let special = [b".".to_vec(), b"..".to_vec()].into_iter();
        let entries = Box::new(special.chain(listed));
        self.keep(Open::Directory { path, entries })
    }

    fn read_directory(&mut self, handle: u32) -> Result<Body, Status> {
        let Some(Open::Directory { path, entries }) = self.open.get_mut(&handle) else {
            return Err(Status::Failure);
        };
        let names: Vec<Name> = entries
            .take(DIRECTORY_PIECE)
            .filter_map(|name| list(path, name))
            .collect();
        if names.is_empty() {
            Err(Status::Eof)
        } else {
            Ok(Body::Names(names))
        }
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Open::File { file, .. } => file.fmt(f),
            Open::Directory { path, .. } => path.fmt(f),
        }
    }
}

fn done(result: Result<(), Status>) -> Result<Body, Status> {
    result.map(|()| Body::Status(Status::Ok))
}

fn path_reply(path: PathBuf) -> Body {
    let name = path.into_os_string().into_vec();
    Body::Names(vec![Name {
        long: name.clone(),
        name,
        attributes: Attributes::default(),
    }])
}

/// An entry that has vanished meanwhile is left out.
fn list(directory: &Path, name: Vec<u8>) -> Option<Name> {
    let found = fs_err::symlink_metadata(directory.join(OsStr::from_bytes(&name))).ok()?;
    Some(Name {
        long: long_name(&name, &found),
        attributes: attributes_of(&found),
        name,
    })
}

/// The line of `ls -ln`.
fn long_name(name: &[u8], found: &std::fs::Metadata) -> Vec<u8> {
    let time = jiff::Timestamp::from_second(found.mtime()).unwrap_or_default();
    let time = time
        .to_zoned(jiff::tz::TimeZone::UTC)
        .strftime("%b %e  %Y")
        .to_string();
    let mut line = format!(
        "{} {:4} {:<8} {:<8} {:>8} {} ",
        permissions(found.mode()),
        found.nlink(),
        found.uid(),
        found.gid(),
        found.size(),
        time
    )
    .into_bytes();
    line.extend_from_slice(name);
    line
}

fn permissions(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '-',
    };
    let bits = (0..9).map(|place| {
        let letter = ['r', 'w', 'x'].get(place % 3).copied().unwrap_or('-');
        if mode & (0o400 >> place) != 0 { letter } else { '-' }
    });
    std::iter::once(kind).chain(bits).collect()
}

fn attributes_of(found: &std::fs::Metadata) -> Attributes {
    let seconds = |time: i64| u32::try_from(time).unwrap_or(0);
    Attributes {
        size: Some(found.size()),
        owner: Some((found.uid(), found.gid())),
        mode: Some(found.mode()),
        times: Some((seconds(found.atime()), seconds(found.mtime()))),
    }
}

fn set_attributes(path: &Path, attributes: Attributes, flags: AtFlags) -> Result<(), Status> {
    if let Some(size) = attributes.size {
        if flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
            return Err(Status::BadMessage);
        }
        fs_err::OpenOptions::new().write(true).open(path)?.set_len(size)?;
    }
    if let Some(mode) = attributes.mode {
        rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode & 0o7777), flags)?;
    }
    if let Some(times) = attributes.times {
        rustix::fs::utimensat(CWD, path, &timestamps(times), flags)?;
    }
    if let Some((uid, gid)) = attributes.owner {
        rustix::fs::chownat(
            CWD,
            path,
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
            flags,
        )?;
    }
    Ok(())
}

fn set_handle_attributes(file: &File, attributes: Attributes) -> Result<(), Status> {
    if let Some(size) = attributes.size {
        file.set_len(size)?;
    }
    if let Some(mode) = attributes.mode {
        rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(mode & 0o7777))?;
    }
    if let Some(times) = attributes.times {
        rustix::fs::futimens(file.as_fd(), &timestamps(times))?;
    }
    if let Some((uid, gid)) = attributes.owner {
        rustix::fs::fchown(file.as_fd(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

fn timestamps((accessed, modified): (u32, u32)) -> Timestamps {
    let at = |seconds: u32| Timespec {
        tv_sec: seconds.into(),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at(accessed),
        last_modification: at(modified),
    }
}

fn remove_file(path: &Path) -> Result<(), Status> {
    if fs_err::symlink_metadata(path)?.is_dir() {
        return Err(Status::Failure);
    }
    Ok(fs_err::remove_file(path)?)
}

/// Renames without replacing anything, as version 3 of the protocol wants it.
fn rename_new(from: &Path, to: &Path) -> Result<(), Status> {
    use rustix::fs::{RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can promise it: look first, then rename.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            if fs_err::symlink_metadata(to).is_ok() {
                return Err(Status::Failure);
            }
            Ok(fs_err::rename(from, to)?)
        }
        result => Ok(result?),
    }
}

/// The absolute path without links; the last component need not exist.
fn real_path(path: &Path) -> Result<PathBuf, Status> {
    match fs_err::canonicalize(path) {
        Ok(real) => Ok(real),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(Status::NoSuchFile)?;
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            Ok(fs_err::canonicalize(parent)?.join(name))
        }
        Err(error) => Err(error.into()),
    }
}

/// `~` and `~/x` are below the user's home.
fn expand(path: &Path) -> Result<PathBuf, Status> {
    match path.strip_prefix("~") {
        Ok(rest) => Ok(dstack_system::env::home().ok_or(Status::Failure)?.join(rest)),
        Err(_) => Ok(path.to_owned()),
    }
}

fn figures(found: &rustix::fs::StatVfs) -> VfsFigures {
    // The protocol knows two flags only: read-only and no set-uid.
    let flag = |flag, bit| if found.f_flag.contains(flag) { bit } else { 0 };
    let flags =
        flag(rustix::fs::StatVfsMountFlags::RDONLY, 1) | flag(rustix::fs::StatVfsMountFlags::NOSUID, 2);
    [
        found.f_bsize,
        found.f_frsize,
        found.f_blocks,
        found.f_bfree,
        found.f_bavail,
        found.f_files,
        found.f_ffree,
        found.f_favail,
        found.f_fsid,
        flags,
        found.f_namemax,
    ]
}
