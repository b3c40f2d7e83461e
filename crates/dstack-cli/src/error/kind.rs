//! What can happen to a command or to a server that starts, with the code of each and the title of its page.

use std::process::ExitCode;

macro_rules! error_kinds {
    ($($title:literal, $name:ident = $code:expr;)*) => {
        /// What happened: one kind for each thing that a user does about it. Pages: `docs/errors`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $(#[doc = concat!($title, ".")] $name,)*
        }

        impl ErrorKind {
            /// All kinds, by code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the code that is printed with the error, and that names its page; `None` where the error is
            /// not printed as an error.
            pub const fn code(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Returns the title of its page.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$name => $title,)*
                }
            }
        }
    };
}

error_kinds! {
    "An argument, or a combination of arguments, cannot be used",
    Argument = Some("D0101");
    "There is no configuration file",
    ConfigurationMissing = Some("D0102");
    "A configuration is invalid",
    Configuration = Some("D0103");
    "A type of configuration is not supported",
    Unsupported = Some("D0104");
    "A configuration has no name to delete by",
    NameMissing = Some("D0105");
    "A variable has no value",
    Variable = Some("D0106");
    "There is no such profile",
    Profile = Some("D0107");
    "A question cannot be asked",
    NoConfirmation = Some("D0108");
    "A path in `files` does not exist",
    FileMissing = Some("D0109");

    "The server does not answer",
    Unreachable = Some("D0201");
    "The server's URL is not a URL",
    ServerUrl = Some("D0202");
    "The server denies access",
    Denied = Some("D0203");
    "The server has no such project or route",
    NoSuchRoute = Some("D0204");
    "The server refused",
    Refused = Some("D0205");
    "The server does not accept the request's fields",
    InvalidRequest = Some("D0206");
    "The server has too much to do",
    Busy = Some("D0207");
    "The request is too large for the server",
    TooLarge = Some("D0208");
    "Client and server do not understand each other",
    VersionMismatch = Some("D0209");
    "Something else than a dstack server answers",
    NotDstack = Some("D0210");
    "The server failed",
    ServerFailure = Some("D0211");

    "It is not known in which project to work",
    NoProject = Some("D0301");
    "`~/.dstack/config.yml` is invalid",
    ClientConfig = Some("D0302");
    "Variables for the server are incomplete",
    Credentials = Some("D0303");
    "A login by single sign-on is not possible",
    Login = Some("D0304");

    "There is no such thing",
    NotFound = Some("D0401");
    "There is one of this name already",
    AlreadyExists = Some("D0402");
    "It was deleted while the command waited",
    Vanished = Some("D0403");

    "A Git repository cannot be used as it is",
    Repo = Some("D0501");
    "The program `git` cannot be run",
    GitMissing = Some("D0502");
    "No credentials give access to a repository",
    RepoAccess = Some("D0503");
    "An SSH key cannot be used",
    SshKey = Some("D0504");

    "The run is not running",
    NotRunning = Some("D0601");
    "The job cannot be reached",
    AttachFailed = Some("D0602");
    "The connection to the run was lost",
    ConnectionLost = Some("D0603");
    "The run was submitted with another SSH key",
    OtherKey = Some("D0604");
    "A local port is taken",
    PortInUse = Some("D0605");

    "A file of this machine cannot be read or written",
    File = Some("D0701");
    "The home directory or the current directory is unknown",
    Home = Some("D0702");
    "The command line failed",
    Internal = Some("D0703");

    "The server's directory cannot be used",
    ServerDirectory = Some("D0801");
    "Another server uses the database",
    ServerInUse = Some("D0802");
    "The server's `config.yml` is invalid",
    ServerConfig = Some("D0803");
    "The database cannot be used",
    Database = Some("D0804");
    "The disk is full",
    DiskFull = Some("D0805");
    "An encryption key is missing",
    EncryptionKey = Some("D0806");
    "Host and port cannot be listened on",
    Listen = Some("D0807");
    "The bucket for code and files cannot be used",
    Bucket = Some("D0808");
    "The server cannot start its parts",
    ServerStart = Some("D0809");
    "Telemetry cannot be started",
    Telemetry = Some("D0810");
    "An installation cannot be imported",
    Import = Some("D0811");

    "A run did not end well; how was printed already",
    RunFailed = None;
    "A fleet, gateway or volume could not be made; why was printed already",
    ProvisioningFailed = None;
    "The user pressed Ctrl-C",
    Interrupted = None;
}

impl ErrorKind {
    /// Returns the exit code of the process: that of dstack 0.22.5.
    pub const fn exit_code(self) -> ExitCode {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn pages() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors")
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let codes: BTreeSet<&str> = ErrorKind::ALL.iter().filter_map(|kind| kind.code()).collect();
        let with_code = ErrorKind::ALL.iter().filter(|kind| kind.code().is_some());
        assert_eq!(codes.len(), with_code.count(), "each code is of one kind");
        let mut written = BTreeSet::new();
        for entry in fs_err::read_dir(pages()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name != "README.md" {
                written.insert(name.strip_suffix(".md").unwrap().to_owned());
            }
        }
        let codes: BTreeSet<String> = codes.into_iter().map(str::to_owned).collect();
        assert_eq!(codes, written);
    }

    #[test]
    fn pages_say_what_happened_and_what_to_do() {
        let index = fs_err::read_to_string(pages().join("README.md")).unwrap();
        for kind in ErrorKind::ALL {
            let Some(code) = kind.code() else { continue };
            let page = fs_err::read_to_string(pages().join(format!("{code}.md"))).unwrap();
            assert!(
                page.starts_with(&format!("# {code}: {}\n", kind.title())),
                "{code}"
            );
            assert!(page.contains("\n## What to do\n\n- "), "{code}");
            let example = page.split_once("\n## Example\n").unwrap().1;
            assert!(example.contains(&format!("[{code}]")), "{code}");
            let line = format!("- [{code}]({code}.md): {}\n", kind.title());
            assert!(index.contains(&line), "{line}");
        }
    }

    /// Kinds of a server's start are used by the program that has both, `dstack`.
    #[test]
    fn every_kind_is_used() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut sources = String::new();
        for folder in ["dstack-cli/src", "dstack/src"] {
            collect(&crates.join(folder), &mut sources);
        }
        for kind in ErrorKind::ALL {
            assert!(
                sources.contains(&format!("ErrorKind::{kind:?}")),
                "{kind:?} is never made"
            );
        }
    }

    fn collect(folder: &Path, sources: &mut String) {
        for entry in fs_err::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("error/kind.rs")
            {
                sources.push_str(&fs_err::read_to_string(&path).unwrap());
            }
        }
    }
}
