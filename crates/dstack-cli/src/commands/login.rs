//! `dstack login`: a token by single sign-on in the browser.

use std::process::ExitCode;
use std::time::Duration;

use dstack_api::client::Client;
use dstack_api::endpoint::Nothing;
use dstack_api::responses::ProjectsAnswer;
use dstack_api::routes::{AuthListProviders, ProjectsList};
use dstack_model::requests::{ListProjectsRequest, OAuthAuthorizeRequest, OAuthCallbackRequest};
use dstack_model::users::UserWithCreds;
use dstack_system::Secret;

use crate::args::LoginArgs;
use crate::config::Config;
use crate::context::Context;
use crate::error::{CliError, innermost};
use crate::ui::Text;

mod callback;
mod endpoints;

use callback::CallbackServer;
use endpoints::{AuthAuthorize, AuthCallback};

/// The public server.
const DEFAULT_URL: &str = "https://sky.dstack.ai";
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
    let provider = provider(&server, args.provider.as_deref()).await?;
    let user = tokio::select! {
        user = authenticate(context, &server, &provider) => user?,
        _ = tokio::signal::ctrl_c() => {
            context.ui.say("\nCancelled by user");
            return Err(CliError::silent(1));
        }
    };
    let name = &user.user.username;
    context.ui.say(Text::from("Logged in as ").code(name));
    configure(context, &url, Secret::new(user.creds.token), args).await
}

async fn ask_url(context: &Context) -> Result<String, CliError> {
    if !context.ui.can_ask() {
        return Err(CliError::new("the server's URL is not given")
            .hint(format!("pass `--url URL`, e.g. {DEFAULT_URL}")));
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
    let unusable = |error: &reqwest::Error| {
        CliError::new(format!("cannot reach {url}: {}", innermost(error)))
            .hint("check the URL; with its scheme (https://…) it is used as it is")
    };
    // Fails only when a provider is installed already, which serves as well.
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = reqwest::Client::builder().timeout(PROBE).build();
    let client = client.map_err(|error| unusable(&error))?;
    let answer = client.get(format!("http://{url}")).send().await;
    let mut found = answer.map_err(|error| unusable(&error))?.url().clone();
    found.set_query(None);
    found.set_fragment(None);
    Ok(found.as_str().trim_end_matches('/').to_owned())
}

async fn provider(server: &Client, wanted: Option<&str>) -> Result<String, CliError> {
    let providers = server.call::<AuthListProviders>((), &Nothing).await?;
    let enabled: Vec<String> = providers
        .into_iter()
        .filter(|provider| provider.enabled)
        .map(|provider| provider.name)
        .collect();
    let all = enabled.join(", ");
    match (wanted, enabled.as_slice()) {
        (_, []) => Err(CliError::new("No SSO providers configured on the server")
            .hint("use a token instead: `dstack project add --name NAME --url URL --token TOKEN`")),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(CliError::new("the server has several SSO providers")
            .hint(format!("choose one with `--provider`: {all}"))),
        (Some(name), _) if enabled.iter().any(|provider| provider == name) => Ok(name.to_owned()),
        (Some(name), _) => Err(
            CliError::new(format!("Provider {name} is not configured on the server"))
                .hint(format!("choose one of: {all}")),
        ),
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
    // Who reads the output somewhere else has no browser here.
    let opened = context.ui.is_interactive() && open_browser(&url);
    let what = if opened {
        "Your browser has been opened to log in with "
    } else {
        "Open the URL to log in with "
    };
    context.ui.say(Text::from(what).code(provider).push(":\n"));
    context.ui.say(format!("{url}\n"));
    loop {
        let request = callback.next().await?;
        let Some((code, state)) = request.code_and_state() else {
            request.answer(false).await;
            continue;
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

/// Whether a program took the URL.
fn open_browser(url: &str) -> bool {
    let silent = std::process::Stdio::null;
    let started = std::process::Command::new("xdg-open")
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
    let mut config = context.config()?;
    let default = default_after(&config, &names, args);
    for name in &names {
        config.set(name, url, token.clone(), default.as_ref() == Some(name));
    }
    config.save()?;
    let file = config.path().display().to_string();
    let mut added = Text::from("Added ");
    for (index, name) in names.iter().enumerate() {
        added = if index > 0 { added.push(", ") } else { added }.code(name);
    }
    let plural = if names.len() == 1 { "" } else { "s" };
    context.ui.say(added.push(format!(" project{plural} at {file}")));
    if let Some(default) = default {
        context.ui.say(
            Text::from("Set ")
                .code(default)
                .push(format!(" project as default at {file}")),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The new default project: with `-y` the first; otherwise the first only where there was none.
fn default_after(config: &Config, names: &[String], args: &LoginArgs) -> Option<String> {
    if args.no {
        return None;
    }
    match config.default_project() {
        Some(_) if !args.yes => None,
        _ => names.first().cloned(),
    }
}
