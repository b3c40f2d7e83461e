use serde_json::json;

/// User data for cloud-init, which carries it out at the first start of a machine: these public keys may log in as the image's user,
/// then these shell commands are run as root, one after the other. Whoever logs in may find that they have not ended yet.
///
/// It is written as JSON, which is YAML, so that texts need no other quotes.
pub fn cloud_config(authorized_keys: &[String], commands: &[String]) -> String {
    let run: Vec<_> = commands.iter().map(|command| ["sh", "-c", command]).collect();
    let config = match run.is_empty() {
        true => json!({"ssh_authorized_keys": authorized_keys}),
        false => json!({"ssh_authorized_keys": authorized_keys, "runcmd": run}),
    };
    format!("#cloud-config\n{config}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_commands_are_quoted() {
        let keys = ["ssh-ed25519 AAAA p".to_owned()];
        assert_eq!(
            cloud_config(&keys, &[]),
            "#cloud-config\n{\"ssh_authorized_keys\":[\"ssh-ed25519 AAAA p\"]}\n"
        );
        let config = cloud_config(&keys, &["echo \"a: b\"".to_owned()]);
        assert!(
            config.contains(r#""runcmd":[["sh","-c","echo \"a: b\""]]"#),
            "{config}"
        );
    }
}
