//! `dstack backend check`: a file that describes a backend, tried out.

use std::process::ExitCode;

use dstack_cli::BackendCheckArgs;
use dstack_cli::ui::Ui;

/// Runs `dstack backend check`: 0 when everything is as it has to be, 1 otherwise.
#[cfg(not(feature = "manifests"))]
pub fn check_backend(_: BackendCheckArgs) -> ExitCode {
    Ui::system().complain("This build has no backends that files describe");
    ExitCode::FAILURE
}

#[cfg(feature = "manifests")]
pub use with_manifests::check_backend;

#[cfg(feature = "manifests")]
mod with_manifests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use dstack_backend::Env;
    use dstack_backends::manifest::{Choice, Finding, Manifest, check_life, read};
    use dstack_catalog::{Catalog, Settings as CatalogSettings};
    use dstack_http::{ClientOptions, LazyClient, Redirects};
    use dstack_model::backends::BackendType;
    use dstack_system::{Random, SystemClock, chain};
    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::{BackendCheckArgs, ExitCode, Ui};

    /// Runs `dstack backend check`: 0 when everything is as it has to be, 1 otherwise.
    pub fn check_backend(arguments: BackendCheckArgs) -> ExitCode {
        let ui = Ui::system();
        match run(&ui, arguments) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(text) => {
                ui.complain(text);
                ExitCode::FAILURE
            }
        }
    }

    fn run(ui: &Ui, arguments: BackendCheckArgs) -> Result<bool, String> {
        let file = arguments.file.display().to_string();
        let text = fs_err::read_to_string(&arguments.file).map_err(|error| error.to_string())?;
        let manifest = read(&text, &file).map_err(|errors| errors.to_string())?;
        ui.say(format!(
            "ok      file: {} ({}) is described",
            manifest.kind, manifest.title
        ));
        if arguments.offline {
            return Ok(true);
        }
        let fields = fields(&manifest, arguments.creds)?;
        let env = env(&manifest, arguments.url)?;
        let choice = Choice {
            instance_type: arguments.instance_type,
            region: arguments.region,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| chain(&error).to_string())?;
        let mut tell = |finding: &Finding| ui.say(line(finding));
        Ok(runtime.block_on(async {
            // From the first time on that it is asked: until then there is nothing that would have to be removed.
            let mut signals = None;
            let stop = async || interrupted(signals.get_or_insert_with(listen)).await;
            check_life(&env, &manifest, &fields, &choice, stop, &mut tell).await
        }))
    }

    /// What ends a program at the terminal, and what whatever runs it for others sends; `None`: they cannot be heard.
    type Signals = Option<(Signal, Signal)>;

    fn listen() -> Signals {
        let heard = |kind| signal(kind).ok();
        Some((heard(SignalKind::interrupt())?, heard(SignalKind::terminate())?))
    }

    /// Until somebody wants it to end.
    async fn interrupted(signals: &mut Signals) {
        let Some((interrupt, terminate)) = signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }

    fn line(finding: &Finding) -> String {
        match &finding.result {
            Ok(text) => format!("ok      {}: {text}", finding.step),
            Err(text) => format!("FAILED  {}: {text}", finding.step),
        }
    }

    /// The fields that are given, which have to be those of the manifest.
    fn fields(manifest: &Manifest, given: Vec<(String, String)>) -> Result<Vec<(String, String)>, String> {
        let mut fields = Vec::new();
        for (name, value) in given {
            if !manifest.fields.contains_key(&name) {
                let names: Vec<&str> = manifest.fields.keys().map(String::as_str).collect();
                return Err(format!("--creds {name}: the fields are {}", names.join(", ")));
            }
            let value = match value.strip_prefix('@') {
                Some(path) => fs_err::read_to_string(path).map_err(|error| error.to_string())?,
                None => value,
            };
            fields.push((name, value.trim().to_owned()));
        }
        let is_given = |name: &String| fields.iter().any(|(given, _)| given == name);
        let needed = manifest.fields.iter().filter(|(_, field)| !field.optional);
        match needed.map(|(name, _)| name).find(|name| !is_given(name)) {
            Some(missing) => Err(format!("give the field `{missing}`: --creds {missing}=@FILE")),
            None => Ok(fields),
        }
    }

    fn env(manifest: &Manifest, url: Option<url::Url>) -> Result<Env, String> {
        let kind = BackendType::register(&manifest.kind).map_err(|error| error.to_string())?;
        let catalog =
            Catalog::open(CatalogSettings::from_env(None)).map_err(|error| chain(&error).to_string())?;
        Ok(Env {
            clock: Arc::new(SystemClock),
            random: Random::system(),
            // As the server has it.
            transport: Arc::new(LazyClient::new(ClientOptions {
                redirects: Redirects::Never,
                ..ClientOptions::default()
            })),
            catalog: Arc::new(catalog),
            endpoints: url.map(|url| (kind, url)).into_iter().collect::<HashMap<_, _>>(),
            own_url: None,
            installation: Arc::default(),
        })
    }
}
