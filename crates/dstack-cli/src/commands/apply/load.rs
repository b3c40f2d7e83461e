//! The configuration file.

use std::io::Read;
use std::path::{Path, PathBuf};

use dstack_api::endpoint::Nothing;
use dstack_api::routes::BackendsListTypes;
use dstack_model::backends::BackendType;
use dstack_model::configurations::AnyConfiguration;
use dstack_model::yaml::{ConfigErrors, Spans, parse_configuration};
use dstack_units::name::is_resource_name;

use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind, of_io};
use crate::ui::{Role, Text};

/// Name of standard input.
pub(crate) const STDIN: &str = "-";
const DEFAULTS: [&str; 2] = [".dstack.yml", ".dstack.yaml"];

/// A configuration, and its path as it is sent to the server: relative to the working directory.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) configuration: AnyConfiguration,
    pub(crate) path: String,
    spans: Spans,
}

impl Loaded {
    /// Whether the name in the file is one that the server would take.
    pub(crate) fn check_name(&self) -> Result<(), CliError> {
        match self.configuration.name() {
            Some(name) if !is_resource_name(name) => {
                let message = format!(
                    "found \"{name}\", expected 2 to 41 lower-case letters, digits and hyphens, the first of them a letter"
                );
                let error = ConfigErrors::at(&self.path, &self.spans, "name", message);
                Err(CliError::from_error(ErrorKind::Configuration, error))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a configuration: the named file, standard input for `-`, or the default one.
pub(crate) async fn load(
    context: &Context,
    project: &Project,
    file: Option<&str>,
) -> Result<Loaded, CliError> {
    let (text, path) = read(context, file)?;
    let parsed = match parse_configuration(&text, &path) {
        Err(errors) if is_about_backends(&errors) && learn_types(project).await => {
            parse_configuration(&text, &path)
        }
        parsed => parsed,
    };
    let (configuration, spans) =
        parsed.map_err(|errors| CliError::from_error(ErrorKind::Configuration, errors))?;
    for (key, at) in spans.repeated_keys() {
        let warning = format!(
            "{path}:{}:{}: `{key}` is there twice: the last one counts",
            at.line, at.column
        );
        context.ui.complain(Text::new().role(Role::Warning, warning));
    }
    Ok(Loaded {
        configuration,
        path,
        spans,
    })
}

fn is_about_backends(errors: &ConfigErrors) -> bool {
    let mut paths = errors.errors.iter().map(|error| error.path.as_str());
    paths.any(|path| path == "backend" || path.contains("backends"))
}

/// Takes over the types of backends that the server knows by files of its own; whether there are any. One that does not answer is told of
/// by what is asked of it next.
async fn learn_types(project: &Project) -> bool {
    let types = project.client.call::<BackendsListTypes>((), &Nothing).await;
    let types = types.unwrap_or_default().into_iter();
    let foreign = types.filter(|kind| !kind.is_built_in());
    foreign
        .filter(|kind| BackendType::register(kind.as_str()).is_ok())
        .count()
        > 0
}

fn read(context: &Context, file: Option<&str>) -> Result<(String, String), CliError> {
    if file == Some(STDIN) {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| CliError::caused_by(ErrorKind::File, "cannot read standard input", error))?;
        return Ok((text, STDIN.to_owned()));
    }
    let path = match file {
        Some(file) => {
            let path = context.resolve(file, &context.folder);
            if !path.exists() {
                return Err(CliError::new(
                    ErrorKind::ConfigurationMissing,
                    format!("Configuration file {file} does not exist"),
                )
                .hint("give the path of the configuration with `-f`"));
            }
            path
        }
        None => default_file(&context.folder)?,
    };
    let text = fs_err::read_to_string(&path).map_err(|error| {
        CliError::new(
            ErrorKind::File,
            format!("cannot read {}: {}", path.display(), of_io(error.kind())),
        )
    })?;
    Ok((text, relative(&path, &context.folder)))
}

fn default_file(folder: &Path) -> Result<PathBuf, CliError> {
    let candidates = DEFAULTS.into_iter().map(|name| folder.join(name));
    candidates.into_iter().find(|path| path.exists()).ok_or_else(|| {
        CliError::new(
            ErrorKind::ConfigurationMissing,
            "No configuration file specified via `-f` and no default .dstack.yml configuration found",
        )
        .hint("give the path of the configuration with `-f`")
    })
}

/// Relative to the working directory where it lies inside of it.
fn relative(path: &Path, folder: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).display().to_string()
}
