//! Profiles that assume a role. The library does not know them: it passes them over, and would end up with what else the machine has.

use ini::Ini;
use reqsign_core::Context;

/// The profile that is used here if it assumes a role. Keys in the environment come before profiles.
pub(super) async fn with_role(context: &Context) -> Option<String> {
    let is_set = |name: &str| context.env_var(name).is_some_and(|value| !value.is_empty());
    if is_set("AWS_ACCESS_KEY_ID") && is_set("AWS_SECRET_ACCESS_KEY") {
        return None;
    }
    let profile = context.env_var("AWS_PROFILE").filter(|name| !name.is_empty());
    let profile = profile.unwrap_or_else(|| "default".to_owned());
    let of_config = match profile.as_str() {
        "default" => "default".to_owned(),
        name => format!("profile {name}"),
    };
    let files = [
        ("AWS_CONFIG_FILE", "~/.aws/config", of_config),
        (
            "AWS_SHARED_CREDENTIALS_FILE",
            "~/.aws/credentials",
            profile.clone(),
        ),
    ];
    for (variable, usual, section) in files {
        let path = context.env_var(variable).unwrap_or_else(|| usual.to_owned());
        if assumes_role(context, &path, &section).await {
            return Some(profile);
        }
    }
    None
}

/// A file that is not there, or cannot be read, has no profiles.
async fn assumes_role(context: &Context, path: &str, section: &str) -> bool {
    let Some(path) = context.expand_home_dir(path) else {
        return false;
    };
    let Ok(content) = context.file_read(&path).await else {
        return false;
    };
    let file = Ini::load_from_str(&String::from_utf8_lossy(&content));
    file.is_ok_and(|file| file.get_from(Some(section), "role_arn").is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use reqsign_core::StaticEnv;

    use super::*;
    use crate::aws::Files;

    async fn found(config: &str, credentials: &str, variables: &[(&str, &str)]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let aws = folder.path().join(".aws");
        fs_err::create_dir(&aws).unwrap();
        fs_err::write(aws.join("config"), config).unwrap();
        fs_err::write(aws.join("credentials"), credentials).unwrap();
        let variables = variables.iter();
        let envs: HashMap<_, _> = variables
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let env = StaticEnv {
            home_dir: Some(folder.path().to_owned()),
            envs,
        };
        with_role(&Context::new().with_env(env).with_file_read(Files)).await
    }

    #[tokio::test]
    async fn a_profile_that_assumes_a_role_is_known_as_one() {
        let config = "[default]\nregion = us-east-1\n\n[profile jobs]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = default\n";
        let role = "[jobs]\nrole_arn=arn:aws:iam::1:role/r\ncredential_source=Ec2InstanceMetadata\n";
        let keys = "[default]\naws_access_key_id = A\naws_secret_access_key = S\n";
        let jobs = ("AWS_PROFILE", "jobs");
        let in_environment = [jobs, ("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "S")];
        assert_eq!(found(config, keys, &[]).await, None);
        assert_eq!(found("", "", &[jobs]).await, None);
        assert_eq!(found(config, keys, &in_environment).await, None);
        for (config, credentials) in [(config, keys), ("", role)] {
            assert_eq!(found(config, credentials, &[jobs]).await.as_deref(), Some("jobs"));
        }
        let default = "[default]\nrole_arn = arn:aws:iam::1:role/r\n";
        assert_eq!(found(default, "", &[]).await.as_deref(), Some("default"));
        assert_eq!(
            found(default, "", &[("AWS_PROFILE", "")]).await.as_deref(),
            Some("default")
        );
    }
}
