//! `dstack login`: a token by single sign-on in the browser.

use std::process::ExitCode;
use std::time::Duration;

use dstack_api::client::Client;
use dstack_api::endpoint::Nothing;
use dstack_api::responses::ProjectsAnswer;
use dstack_api::routes::{AuthAuthorize, AuthCallback, AuthListProviders, ProjectsList};
use dstack_http::ClientOptions;
use dstack_model::client_config::ClientConfig;
use dstack_model::requests::{ListProjectsRequest, OAuthAuthorizeRequest, OAuthCallbackRequest};
use dstack_model::users::UserWithCreds;
use dstack_system::Secret;

use crate::args::LoginArgs;
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::settings;
use crate::ui::Text;

mod callback;

use callback::{Answer, CallbackServer};

/// Where `dstack server` listens unless it is told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:3000";
/// To find out whether a host speaks HTTPS.
const PROBE: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &LoginArgs) -> Result<ExitCode, CliError> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => ask_url(context).await?,
    };
    let url = with_scheme(&url).await?;
    let server = context.client(&url, Secret::default())?;
    let provider = provider(context, &server, args.provider.as_deref()).await?;
    let user = tokio::select! {
        user = authenticate(context, &server, &provider) => user?,
        () = crate::interrupt::ctrl_c() => {
            context.ui.say("\nCancelled by user");
            return Err(CliError::printed(ErrorKind::Interrupted));
        }
    };
    let name = &user.user.username;
    context.ui.say(Text::from("Logged in as ").code(name));
    configure(context, &url, Secret::new(user.creds.token), args).await
}

async fn ask_url(context: &Context) -> Result<String, CliError> {
    if !context.ui.can_ask() {
        return Err(
            CliError::new(ErrorKind::Argument, "the server's URL is not given")
                .hint(format!("pass `--url URL`, e.g. {DEFAULT_URL}")),
        );
    }
    let question = Text::from("Enter the server URL ").secondary(format!("({DEFAULT_URL})"));
    let answer = context.ui.ask(question).await?;
    let answer = answer.trim();
    Ok(if answer.is_empty() { DEFAULT_URL } else { answer }.to_owned())
}

/// Without a scheme: where `http://…` leads to. A redirected POST would become a GET, so it is found out beforehand.
async fn with_scheme(url: &str) -> Result<String, CliError> {
    if url.contains("://") {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        CliError::new(
            ErrorKind::Unreachable,
            format!("cannot reach {url}: {}", dstack_system::root_cause(error)),
        )
        .hint("check the URL; with its scheme (https://…) it is used as it is")
    };
    let options = ClientOptions {
        total_timeout: Some(PROBE),
        ..ClientOptions::default()
    };
    let client = options.build().map_err(|error| unusable(&error))?;
    let answer = client.get(format!("http://{url}")).send().await;
    let mut found = answer.map_err(|error| unusable(&error))?.url().clone();
    found.set_query(None);
    found.set_fragment(None);
    Ok(found.as_str().trim_end_matches('/').to_owned())
}

async fn provider(context: &Context, server: &Client, wanted: Option<&str>) -> Result<String, CliError> {
    let providers = server.call::<AuthListProviders>((), &Nothing).await?;
    let enabled: Vec<String> = providers
        .into_iter()
        .filter(|provider| provider.enabled)
        .map(|provider| provider.name)
        .collect();
    let all = enabled.join(", ");
    match (wanted, enabled.as_slice()) {
        (_, []) => Err(
            CliError::new(ErrorKind::Login, "No SSO providers configured on the server")
                .hint("use a token instead: `dstack project add --name NAME --url URL --token TOKEN`"),
        ),
        (None, [only]) => Ok(only.clone()),
        (None, _) if context.ui.can_ask() => {
            let chosen = context.ui.choose("Select SSO provider", &enabled, None).await?;
            Ok(chosen.clone())
        }
        (None, _) => Err(
            CliError::new(ErrorKind::Login, "the server has several SSO providers")
                .hint(format!("choose one with `--provider`: {all}")),
        ),
        (Some(name), _) if enabled.iter().any(|provider| provider == name) => Ok(name.to_owned()),
        (Some(name), _) => Err(CliError::new(
            ErrorKind::Login,
            format!("Provider {name} is not configured on the server"),
        )
        .hint(format!("choose one of: {all}"))),
    }
}

/// The browser goes to the provider, and comes back to a port of this machine with a code for the token.
async fn authenticate(context: &Context, server: &Client, provider: &str) -> Result<UserWithCreds, CliError> {
    let callback = CallbackServer::start().await?;
    let request = OAuthAuthorizeRequest {
        local_port: Some(callback.port().into()),
        base_url: None,
    };
    let url = server
        .call::<AuthAuthorize>(provider, &request)
        .await?
        .authorization_url;
    let expected = state_of(&url);
    let opened = open_browser(context, &url);
    let what = if opened {
        "Your browser has been opened to log in with "
    } else {
        "Open the URL to log in with "
    };
    context.ui.say(Text::from(what).code(provider).push(":\n"));
    context.ui.say(format!("{url}\n"));
    loop {
        let request = callback.next().await?;
        let (code, state) = match request.came_back() {
            // A page in the browser that made this call would log the user in as somebody else.
            Some(Answer::Code { state, .. })
                if expected.as_ref().is_some_and(|expected| *expected != state) =>
            {
                request.answer(false).await;
                continue;
            }
            Some(Answer::Code { code, state }) => (code, state),
            Some(Answer::Refused(why)) => {
                request.answer(false).await;
                return Err(
                    CliError::new(ErrorKind::Login, format!("{provider} refused the login: {why}"))
                        .hint("run `dstack login` again"),
                );
            }
            None => {
                request.answer(false).await;
                continue;
            }
        };
        let exchange = OAuthCallbackRequest {
            code,
            state,
            base_url: None,
        };
        let result = server.call::<AuthCallback>(provider, &exchange).await;
        request.answer(result.is_ok()).await;
        return result.map_err(|error| CliError::from(error).hint("run `dstack login` again"));
    }
}

/// The state with which the provider sends the browser back.
fn state_of(authorization_url: &str) -> Option<String> {
    let url = url::Url::parse(authorization_url).ok()?;
    let mut query = url.query_pairs();
    query
        .find(|(name, _)| name == "state")
        .map(|(_, state)| state.into_owned())
}

/// Whether a program took the URL: the one in `BROWSER`, otherwise the desktop's, if somebody sits before it.
fn open_browser(context: &Context, url: &str) -> bool {
    let desktop = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let program = match context.env.get(settings::BROWSER) {
        Some(program) => program,
        // Who reads the output somewhere else has no browser here.
        None if !context.ui.is_interactive() => return false,
        None => desktop.to_owned(),
    };
    let silent = std::process::Stdio::null;
    let started = std::process::Command::new(program)
        .arg(url)
        .stdin(silent())
        .stdout(silent())
        .stderr(silent())
        .spawn();
    started.is_ok()
}

/// Adds the user's projects to the configuration file, and chooses the default one.
async fn configure(
    context: &Context,
    url: &str,
    token: Secret,
    args: &LoginArgs,
) -> Result<ExitCode, CliError> {
    let client = context.client(url, token.clone())?;
    let request = ListProjectsRequest {
        include_not_joined: false,
        ..ListProjectsRequest::default()
    };
    let projects = match client.call::<ProjectsList>((), &request).await? {
        ProjectsAnswer::Plain(projects) => projects,
        ProjectsAnswer::Counted(list) => list.projects,
    };
    let names: Vec<String> = projects.into_iter().map(|project| project.project_name).collect();
    if names.is_empty() {
        context.ui.say(
            "No projects configured. Create your own project via the UI or contact a project manager to add you to the \
             project.",
        );
        return Ok(ExitCode::SUCCESS);
    }
    let before = context
        .config()?
        .default_project()
        .map(|project| project.name.clone());
    let config = context.change_config(|config| {
        for name in &names {
            config.set(name, url, token.expose(), false);
        }
    })?;
    let file = context.config_path().display().to_string();
    let mut added = Text::from("Added ");
    for (index, name) in names.iter().enumerate() {
        added = if index > 0 { added.push(", ") } else { added }.code(name);
    }
    let plural = if names.len() == 1 { "" } else { "s" };
    context.ui.say(added.push(format!(" project{plural} at {file}")));
    if let Some(default) = default_after(context, &config, before.as_deref(), &names, args).await? {
        context.change_config(|config| {
            if let Some(project) = config.project(&default).cloned() {
                config.set(&default, &project.url, &project.token, true);
            }
        })?;
        context.ui.say(
            Text::from("Set ")
                .code(default)
                .push(format!(" project as default at {file}")),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The new default project: with `-y` the first one of the server; where there is only one, that; otherwise as the user says,
/// and if nobody can be asked the one that was, or the first.
async fn default_after(
    context: &Context,
    config: &ClientConfig,
    before: Option<&str>,
    names: &[String],
    args: &LoginArgs,
) -> Result<Option<String>, CliError> {
    if args.no {
        return Ok(None);
    }
    if args.yes {
        return Ok(names.first().cloned());
    }
    let all: Vec<String> = config
        .projects()
        .iter()
        .map(|project| project.name.clone())
        .collect();
    if let [only] = all.as_slice() {
        return Ok(Some(only.clone()));
    }
    if context.ui.can_ask() {
        let chosen = context.ui.choose("Set default project", &all, before).await?;
        return Ok(Some(chosen.clone()));
    }
    Ok(match before {
        None => names.first().cloned(),
        Some(before) => names.iter().find(|name| *name == before).cloned(),
    })
}
