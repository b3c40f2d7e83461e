//! What can happen to a command.

use std::process::ExitCode;

/// What happened: one kind for each thing that a user does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An argument, or a combination of arguments, cannot be used.
    Argument,
    /// There is no configuration file.
    ConfigurationMissing,
    /// A configuration file or `profiles.yml` is invalid.
    Configuration,
    /// A configuration is of a type that this command line does not apply.
    Unsupported,
    /// A configuration has no name, and without one nothing can be found.
    NameMissing,
    /// An environment variable is not set, or `${{ }}` refers to nothing.
    Variable,
    /// There is no such profile.
    Profile,
    /// A question was to be asked, but nobody can answer.
    NoConfirmation,
    /// A path in `files` does not exist.
    FileMissing,

    /// The server does not answer.
    Unreachable,
    /// The server's URL is not one.
    ServerUrl,
    /// The server does not accept the token, or the user may not do this.
    Denied,
    /// The server has no such project or route.
    NoSuchRoute,
    /// The server understood and refused.
    Refused,
    /// The server does not accept the request's fields.
    InvalidRequest,
    /// The server has too much to do.
    Busy,
    /// The request is too large for the server.
    TooLarge,
    /// Client and server do not understand each other.
    VersionMismatch,
    /// Something else than a dstack server answers.
    NotDstack,
    /// The server failed.
    ServerFailure,

    /// It is not known in which project to work.
    NoProject,
    /// `~/.dstack/config.yml` is invalid.
    ClientConfig,
    /// Some variables of `DSTACK_TOKEN`, `DSTACK_SERVER_URL`, `DSTACK_PROJECT` are set, but not enough.
    Credentials,
    /// A login by single sign-on is not possible or was refused.
    Login,

    /// There is no such run, fleet, volume, gateway, secret, token, ...
    NotFound,
    /// There is one of this name already.
    AlreadyExists,
    /// It was deleted while the command waited for it.
    Vanished,

    /// A repository cannot be used as it is.
    Repo,
    /// The program `git` cannot be run.
    GitMissing,
    /// No credentials give access to a repository.
    RepoAccess,
    /// An SSH key cannot be used.
    SshKey,

    /// A run cannot be attached to because it does not run.
    NotRunning,
    /// A run cannot be attached to.
    AttachFailed,
    /// The connection to a run was lost.
    ConnectionLost,
    /// A run was submitted with another SSH key.
    OtherKey,
    /// A local port is taken.
    PortInUse,
    /// A run did not end well.
    RunFailed,
    /// A fleet, gateway or volume could not be made.
    ProvisioningFailed,

    /// A file of this machine cannot be read or written.
    File,
    /// The home directory or the working directory is not known.
    Home,
    /// This cannot be the user's doing.
    Internal,
    /// The user pressed Ctrl-C.
    Interrupted,
}

impl ErrorKind {
    /// Returns the exit code of the process: that of dstack 0.22.5.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::FAILURE
    }
}
