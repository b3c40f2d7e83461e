//! A run's configuration with the command line's flags, the user's environment and references filled in.

use std::collections::BTreeSet;

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::envs::{Env, EnvValue, is_item};
use dstack_model::interpolate::Interpolator;
use dstack_units::PortMapping;
use dstack_units::quoting::shell_line;

use crate::args::ApplyArgs;
use crate::error::{CliError, ErrorKind};
use crate::settings::Environment;

/// Fills everything in.
pub(crate) fn prepare(
    configuration: &mut AnyRunConfiguration,
    args: &ApplyArgs,
    env: &Environment,
) -> Result<(), CliError> {
    args.resources.apply(&mut configuration.base_mut().resources);
    args.profile.apply(configuration.params_mut());
    if let Some(name) = &args.name {
        configuration.base_mut().name = Some(name.clone());
    }
    apply_env(&mut configuration.base_mut().env, &args.kind.env, env)?;
    interpolate_env(configuration)?;
    if let Some(working_dir) = configuration
        .base()
        .working_dir
        .as_deref()
        .filter(|path| !path.starts_with('/'))
    {
        return Err(
            CliError::new(ErrorKind::Configuration, "working_dir must be absolute")
                .hint(format!("write `working_dir: /{working_dir}`")),
        );
    }
    match configuration {
        AnyRunConfiguration::Task(task) => {
            task.ports = merge_ports(&task.ports, &args.kind.ports)?;
            let groups = task.groups.iter_mut().flatten().map(|group| &mut group.commands);
            interpolate_commands(
                std::iter::once(&mut task.commands).chain(groups),
                &args.kind.run_args,
            )
        }
        AnyRunConfiguration::Service(service) => {
            let groups = service
                .groups
                .iter_mut()
                .flatten()
                .map(|group| &mut group.commands);
            interpolate_commands(
                std::iter::once(&mut service.commands).chain(groups),
                &args.kind.run_args,
            )
        }
        AnyRunConfiguration::DevEnvironment(environment) => {
            environment.ports = merge_ports(&environment.ports, &args.kind.ports)?;
            Ok(())
        }
    }
}

/// Values of `-e` win; variables without a value are taken from the user's environment.
pub(crate) fn apply_env(variables: &mut Env, flags: &[String], env: &Environment) -> Result<(), CliError> {
    if let Some(bad) = flags.iter().find(|flag| !is_item(flag)) {
        return Err(CliError::new(
            ErrorKind::Argument,
            format!("`{bad}` is not an environment variable"),
        )
        .hint("write `-e NAME=VALUE` or `-e NAME`"));
    }
    // The last of several flags for one variable wins.
    for flag in flags {
        let flag = Env::from_items(std::slice::from_ref(flag))
            .map_err(|text| CliError::new(ErrorKind::Argument, text))?;
        variables.extend(&flag);
    }
    for (name, value) in &mut variables.0 {
        if *value == EnvValue::FromClient {
            let found = env.get(name).ok_or_else(|| {
                CliError::new(
                    ErrorKind::Variable,
                    format!("Environment variable {name} is not set"),
                )
                .hint(format!("set it, or pass `-e {name}=VALUE`"))
            })?;
            *value = EnvValue::Text(found);
        }
    }
    Ok(())
}

fn interpolate_env(configuration: &mut AnyRunConfiguration) -> Result<(), CliError> {
    let variables = configuration
        .base()
        .env
        .to_map()
        .map_err(|text| CliError::new(ErrorKind::Variable, text))?;
    let known = Interpolator::new().namespace("env", variables).skip("secrets");
    let fill = |text: &mut String| fill(text, &known);
    if let Some(auth) = &mut configuration.base_mut().registry_auth {
        fill(&mut auth.username)?;
        fill(&mut auth.password)?;
    }
    let AnyRunConfiguration::Service(service) = configuration else {
        return Ok(());
    };
    for probe in service.probes.iter_mut().flatten() {
        probe
            .headers
            .iter_mut()
            .try_for_each(|header| fill(&mut header.value))?;
        probe.url.as_mut().map_or(Ok(()), fill)?;
        probe.body.as_mut().map_or(Ok(()), fill)?;
    }
    Ok(())
}

fn interpolate_commands<'a>(
    commands: impl Iterator<Item = &'a mut Vec<String>>,
    run_args: &[String],
) -> Result<(), CliError> {
    let known = Interpolator::new()
        .namespace("run", [("args", shell_line(run_args))])
        .skip("secrets")
        .skip_groups();
    for command in commands.flatten() {
        fill(command, &known)?;
    }
    Ok(())
}

fn fill(text: &mut String, known: &Interpolator) -> Result<(), CliError> {
    *text = known
        .interpolate(text)
        .map_err(|error| CliError::from_error(ErrorKind::Variable, error))?;
    Ok(())
}

/// Mappings of the command line over the configuration's, by container port.
fn merge_ports(own: &[PortMapping], flags: &[PortMapping]) -> Result<Vec<PortMapping>, CliError> {
    unique(own.iter().map(|mapping| mapping.container_port))?;
    unique(flags.iter().map(|mapping| mapping.container_port))?;
    let mut merged = own.to_vec();
    for flag in flags {
        match merged
            .iter_mut()
            .find(|mapping| mapping.container_port == flag.container_port)
        {
            Some(mapping) => *mapping = *flag,
            None => merged.push(*flag),
        }
    }
    if !flags.is_empty() {
        unique(merged.iter().filter_map(|mapping| mapping.local_port))?;
    }
    Ok(merged)
}

fn unique(ports: impl Iterator<Item = u16>) -> Result<(), CliError> {
    let mut seen = BTreeSet::new();
    for port in ports {
        if !seen.insert(port) {
            return Err(
                CliError::new(ErrorKind::Argument, format!("Port {port} is already in use"))
                    .hint("give each port once"),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(texts: &[&str]) -> Vec<PortMapping> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn flags_win_by_container_port() {
        assert_eq!(
            merge_ports(&ports(&["8080", "9000"]), &ports(&["80:8080", "*:7000"])).unwrap(),
            ports(&["80:8080", "9000", "*:7000"])
        );
        assert!(merge_ports(&ports(&["80:1", "2"]), &ports(&["80:2"])).is_err());
        assert!(merge_ports(&[], &ports(&["1", "2:1"])).is_err());
    }

    #[test]
    fn variables() {
        let env = Environment::fixed([("HF_TOKEN", "t")]);
        let mut variables = Env::from_items(&["A=1".to_owned(), "HF_TOKEN".to_owned()]).unwrap();
        apply_env(&mut variables, &["A=2".to_owned(), "B=3".to_owned()], &env).unwrap();
        let map = variables.to_map().unwrap();
        assert_eq!(
            (map["A"].as_str(), map["B"].as_str(), map["HF_TOKEN"].as_str()),
            ("2", "3", "t")
        );
        let mut missing = Env::from_items(&["NONE".to_owned()]).unwrap();
        assert!(
            apply_env(&mut missing, &[], &env)
                .unwrap_err()
                .hint_text()
                .unwrap()
                .contains("NONE")
        );
        assert!(apply_env(&mut variables, &["1X=2".to_owned()], &env).is_err());
    }
}
