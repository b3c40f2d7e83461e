//! Which profile a run gets.

use dstack_model::profiles::Profile;
use dstack_model::yaml::parse_profiles;

use crate::args::ProfileArgs;
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::{fs, settings};

/// The profile by flags, then environment: `--no-profile`, `--profile`, `DSTACK_NO_PROFILE`, `DSTACK_PROFILE`, then
/// the default one of the first file that has one.
///
/// # Errors
/// A named profile is unknown, or a file is invalid.
pub fn choose(context: &Context, args: &ProfileArgs) -> Result<Profile, CliError> {
    if args.no_profile {
        return Ok(none());
    }
    if let Some(name) = &args.profile {
        return load(context, Some(name));
    }
    if is_true(context.env.get(settings::NO_PROFILE).as_deref())? {
        return Ok(none());
    }
    load(context, context.env.get(settings::PROFILE).as_deref())
}

/// The named profile, or the default one.
///
/// # Errors
/// A named profile is unknown, or a file is invalid.
pub fn load(context: &Context, name: Option<&str>) -> Result<Profile, CliError> {
    let folders = [context.folder.join(".dstack"), context.dstack_folder()];
    for folder in &folders {
        for file in ["profiles.yml", "profiles.yaml"] {
            let path = folder.join(file);
            let Some(text) = fs::read_if_exists(&path)? else {
                continue;
            };
            let shown = path.display().to_string();
            let (profiles, _) = parse_profiles(&text, &shown)
                .map_err(|error| CliError::from_error(ErrorKind::Configuration, error))?;
            let found = match name {
                Some(name) => profiles.get(name),
                None => profiles.default_profile(),
            };
            if let Some(profile) = found {
                return Ok(profile.clone());
            }
            break;
        }
    }
    match name {
        None => Ok(named("default")),
        Some(name) => Err(
            CliError::new(ErrorKind::Profile, format!("No such profile: {name}"))
                .hint("define it in `.dstack/profiles.yml` or `~/.dstack/profiles.yml`"),
        ),
    }
}

fn none() -> Profile {
    named("no-profile")
}

fn named(name: &str) -> Profile {
    Profile {
        name: name.to_owned(),
        ..Profile::default()
    }
}

fn is_true(value: Option<&str>) -> Result<bool, CliError> {
    match value.map(str::to_lowercase).as_deref() {
        None | Some("0" | "false" | "no" | "off" | "f" | "n") => Ok(false),
        Some("1" | "true" | "yes" | "on" | "t" | "y") => Ok(true),
        Some(other) => Err(CliError::new(
            ErrorKind::Argument,
            format!("{} must be true or false, not `{other}`", settings::NO_PROFILE),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Environment;
    use crate::ui::Ui;

    fn context(folder: &std::path::Path, env: Environment) -> Context {
        let (ui, _) = Ui::captured(80, "");
        Context {
            ui,
            env,
            home: folder.join("home"),
            folder: folder.join("work"),
        }
    }

    fn write(folder: &std::path::Path, name: &str, text: &str) {
        fs::replace(&folder.join(name), text.as_bytes(), fs::Access::Normal).unwrap();
    }

    #[test]
    fn precedence() {
        let folder = tempfile::tempdir().unwrap();
        let here = context(folder.path(), Environment::fixed([]));
        let flags = ProfileArgs::default();
        assert_eq!(choose(&here, &flags).unwrap().name, "default");
        write(
            folder.path(),
            "home/.dstack/profiles.yml",
            "profiles:\n- {name: big, max_price: 9}\n- {name: usual, default: true}\n",
        );
        assert_eq!(choose(&here, &flags).unwrap().name, "usual");
        write(
            folder.path(),
            "work/.dstack/profiles.yaml",
            "profiles:\n- {name: local, default: true}\n",
        );
        assert_eq!(choose(&here, &flags).unwrap().name, "local");
        let by_env = context(folder.path(), Environment::fixed([(settings::PROFILE, "big")]));
        assert_eq!(choose(&by_env, &flags).unwrap().params.max_price, Some(9.0));
        let off = context(
            folder.path(),
            Environment::fixed([(settings::PROFILE, "big"), (settings::NO_PROFILE, "1")]),
        );
        assert_eq!(choose(&off, &flags).unwrap().name, "no-profile");
        let named = ProfileArgs {
            profile: Some("usual".to_owned()),
            ..ProfileArgs::default()
        };
        assert_eq!(choose(&off, &named).unwrap().name, "usual");
    }

    #[test]
    fn refusals() {
        let folder = tempfile::tempdir().unwrap();
        let here = context(folder.path(), Environment::fixed([]));
        let named = ProfileArgs {
            profile: Some("x".to_owned()),
            ..ProfileArgs::default()
        };
        assert_eq!(
            choose(&here, &named).unwrap_err().message().unwrap(),
            "No such profile: x"
        );
        write(
            folder.path(),
            "work/.dstack/profiles.yml",
            "profiles:\n- {name: local, max_prise: 1}\n",
        );
        let message = choose(&here, &ProfileArgs::default())
            .unwrap_err()
            .message()
            .unwrap()
            .to_owned();
        assert!(
            message.contains("profiles.yml") && message.contains("max_prise"),
            "{message}"
        );
    }
}
