//! Packets of the protocol: parsing requests, encoding replies.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// File attributes; absent ones are not to be changed, or not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) size: Option<u64>,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) mode: Option<u32>,
    /// Access and modification time, seconds since the epoch.
    pub(super) times: Option<(u32, u32)>,
}

/// A request, without its id.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Init,
    Open(PathBuf, OpenFlags, Attributes),
    Close(u32),
    Read(u32, u64, u32),
    Write(u32, u64, Vec<u8>),
    Stat(PathBuf),
    LinkStat(PathBuf),
    HandleStat(u32),
    SetStat(PathBuf, Attributes),
    LinkSetStat(PathBuf, Attributes),
    HandleSetStat(u32, Attributes),
    OpenDir(PathBuf),
    ReadDir(u32),
    Remove(PathBuf),
    MakeDir(PathBuf, Attributes),
    RemoveDir(PathBuf),
    RealPath(PathBuf),
    /// Fails when the target exists.
    Rename(PathBuf, PathBuf),
    /// Replaces the target.
    Replace(PathBuf, PathBuf),
    ReadLink(PathBuf),
    /// Target, then link: OpenSSH's order, which all clients follow.
    SymLink(PathBuf, PathBuf),
    HardLink(PathBuf, PathBuf),
    Sync(u32),
    StatVfs(PathBuf),
    HandleStatVfs(u32),
    Limits,
    ExpandPath(PathBuf),
    Unknown,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenFlags(u32);

impl OpenFlags {
    pub(super) const fn read(self) -> bool {
        self.0 & 1 != 0
    }
    pub(super) const fn write(self) -> bool {
        self.0 & 2 != 0
    }
    pub(super) const fn append(self) -> bool {
        self.0 & 4 != 0
    }
    pub(super) const fn create(self) -> bool {
        self.0 & 8 != 0
    }
    pub(super) const fn truncate(self) -> bool {
        self.0 & 16 != 0
    }
    pub(super) const fn exclusive(self) -> bool {
        self.0 & 32 != 0
    }
}

/// Outcome of a request without a better answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    Eof,
    NoSuchFile,
    PermissionDenied,
    Failure,
    BadMessage,
    Unsupported,
}

impl Status {
    const fn code(self) -> u32 {
        match self {
            Status::Ok => 0,
            Status::Eof => 1,
            Status::NoSuchFile => 2,
            Status::PermissionDenied => 3,
            Status::Failure => 4,
            Status::BadMessage => 5,
            Status::Unsupported => 8,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Status::Ok => "Success",
            Status::Eof => "End of file",
            Status::NoSuchFile => "No such file",
            Status::PermissionDenied => "Permission denied",
            Status::Failure => "Failure",
            Status::BadMessage => "Bad message",
            Status::Unsupported => "Operation unsupported",
        }
    }
}

/// One entry of a directory, or one path.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    /// As `ls -l` shows it.
    pub(super) long: Vec<u8>,
    pub(super) attributes: Attributes,
}

/// File system figures, in the order of the protocol.
pub(super) type VfsFigures = [u64; 11];

/// What is answered.
#[derive(Debug)]
pub(super) enum Body {
    Version,
    Status(Status),
    Handle(u32),
    Data(Vec<u8>),
    Names(Vec<Name>),
    Attributes(Attributes),
    Vfs(VfsFigures),
    Limits([u64; 4]),
}

/// An answer to the request `id`.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: u32,
    pub(super) body: Body,
}

const EXTENSIONS: &[(&str, &str)] = &[
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

/// The id in a packet that could not be parsed.
pub(super) fn request_id(packet: &[u8]) -> u32 {
    let mut fields = Fields(packet.get(1..).unwrap_or_default());
    fields.u32().unwrap_or(0)
}

/// Parses a packet (without its length); `None` when it is malformed.
pub(super) fn parse(packet: &[u8]) -> Option<(u32, Request)> {
    let (kind, rest) = packet.split_first()?;
    let mut fields = Fields(rest);
    // For the first packet this is the version.
    let id = fields.u32()?;
    let request = match kind {
        1 => Request::Init,
        3 => Request::Open(fields.path()?, OpenFlags(fields.u32()?), fields.attributes()?),
        4 => Request::Close(fields.handle()?),
        5 => Request::Read(fields.handle()?, fields.u64()?, fields.u32()?),
        6 => Request::Write(fields.handle()?, fields.u64()?, fields.bytes()?.to_vec()),
        7 => Request::LinkStat(fields.path()?),
        8 => Request::HandleStat(fields.handle()?),
        9 => Request::SetStat(fields.path()?, fields.attributes()?),
        10 => Request::HandleSetStat(fields.handle()?, fields.attributes()?),
        11 => Request::OpenDir(fields.path()?),
        12 => Request::ReadDir(fields.handle()?),
        13 => Request::Remove(fields.path()?),
        14 => Request::MakeDir(fields.path()?, fields.attributes()?),
        15 => Request::RemoveDir(fields.path()?),
        16 => Request::RealPath(fields.path()?),
        17 => Request::Stat(fields.path()?),
        18 => Request::Rename(fields.path()?, fields.path()?),
        19 => Request::ReadLink(fields.path()?),
        20 => Request::SymLink(fields.path()?, fields.path()?),
        200 => extended(&mut fields)?,
        _ => Request::Unknown,
    };
    Some((id, request))
}

fn extended(fields: &mut Fields<'_>) -> Option<Request> {
    Some(match fields.bytes()? {
        b"posix-rename@openssh.com" => Request::Replace(fields.path()?, fields.path()?),
        b"statvfs@openssh.com" => Request::StatVfs(fields.path()?),
        b"fstatvfs@openssh.com" => Request::HandleStatVfs(fields.handle()?),
        b"hardlink@openssh.com" => Request::HardLink(fields.path()?, fields.path()?),
        b"fsync@openssh.com" => Request::Sync(fields.handle()?),
        b"lsetstat@openssh.com" => Request::LinkSetStat(fields.path()?, fields.attributes()?),
        b"limits@openssh.com" => Request::Limits,
        b"expand-path@openssh.com" => Request::ExpandPath(fields.path()?),
        _ => Request::Unknown,
    })
}

/// Fields of a packet, taken from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }

    fn path(&mut self) -> Option<PathBuf> {
        let bytes = self.bytes()?;
        // An empty path is the directory the session starts in.
        let bytes = if bytes.is_empty() { b"." } else { bytes };
        Some(PathBuf::from(OsString::from_vec(bytes.to_vec())))
    }

    fn handle(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.bytes()?.try_into().ok()?))
    }

    fn attributes(&mut self) -> Option<Attributes> {
        let flags = self.u32()?;
        let has = |bit: u32| flags & bit != 0;
        let mut attributes = Attributes::default();
        if has(1) {
            attributes.size = Some(self.u64()?);
        }
        if has(2) {
            attributes.owner = Some((self.u32()?, self.u32()?));
        }
        if has(4) {
            attributes.mode = Some(self.u32()?);
        }
        if has(8) {
            attributes.times = Some((self.u32()?, self.u32()?));
        }
        Some(attributes)
    }
}

impl Reply {
    /// The whole packet, length included.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut packet = vec![0; 4];
        let kind: u8 = match self.body {
            Body::Version => 2,
            Body::Status(_) => 101,
            Body::Handle(_) => 102,
            Body::Data(_) => 103,
            Body::Names(_) => 104,
            Body::Attributes(_) => 105,
            Body::Vfs(_) | Body::Limits(_) => 201,
        };
        packet.push(kind);
        match &self.body {
            Body::Version => {
                put_u32(&mut packet, 3);
                for (name, version) in EXTENSIONS {
                    put_bytes(&mut packet, name.as_bytes());
                    put_bytes(&mut packet, version.as_bytes());
                }
            }
            body => {
                put_u32(&mut packet, self.id);
                put_body(&mut packet, body);
            }
        }
        let length = u32::try_from(packet.len().saturating_sub(4)).unwrap_or(u32::MAX);
        if let Some(head) = packet.first_chunk_mut() {
            *head = length.to_be_bytes();
        }
        packet
    }
}

fn put_body(packet: &mut Vec<u8>, body: &Body) {
    match body {
        Body::Version => {}
        Body::Status(status) => {
            put_u32(packet, status.code());
            put_bytes(packet, status.text().as_bytes());
            put_bytes(packet, b"en");
        }
        Body::Handle(handle) => put_bytes(packet, &handle.to_be_bytes()),
        Body::Data(data) => put_bytes(packet, data),
        Body::Names(names) => {
            put_u32(packet, u32::try_from(names.len()).unwrap_or(u32::MAX));
            for name in names {
                put_bytes(packet, &name.name);
                put_bytes(packet, &name.long);
                put_attributes(packet, &name.attributes);
            }
        }
        Body::Attributes(attributes) => put_attributes(packet, attributes),
        Body::Vfs(figures) => figures.iter().for_each(|figure| put_u64(packet, *figure)),
        Body::Limits(limits) => limits.iter().for_each(|limit| put_u64(packet, *limit)),
    }
}

fn put_attributes(packet: &mut Vec<u8>, attributes: &Attributes) {
    let bit = |present: bool, bit: u32| if present { bit } else { 0 };
    let flags = bit(attributes.size.is_some(), 1)
        | bit(attributes.owner.is_some(), 2)
        | bit(attributes.mode.is_some(), 4)
        | bit(attributes.times.is_some(), 8);
    put_u32(packet, flags);
    if let Some(size) = attributes.size {
        put_u64(packet, size);
    }
    if let Some((uid, gid)) = attributes.owner {
        put_u32(packet, uid);
        put_u32(packet, gid);
    }
    if let Some(mode) = attributes.mode {
        put_u32(packet, mode);
    }
    if let Some((accessed, modified)) = attributes.times {
        put_u32(packet, accessed);
        put_u32(packet, modified);
    }
}

fn put_u32(packet: &mut Vec<u8>, value: u32) {
    packet.extend_from_slice(&value.to_be_bytes());
}

fn put_u64(packet: &mut Vec<u8>, value: u64) {
    packet.extend_from_slice(&value.to_be_bytes());
}

fn put_bytes(packet: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(packet, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    packet.extend_from_slice(bytes);
}
