//! Values that the environment of a run takes from elsewhere.

use dstack_model::envs::EnvValue;
use dstack_model::interpolate::Interpolator;
use dstack_model::runs::RunSpec;

/// Whether the environment refers to anything.
pub fn has_references(spec: &RunSpec) -> bool {
    texts(spec).any(|(_, text)| text.contains("${{"))
}

fn texts(spec: &RunSpec) -> impl Iterator<Item = (&String, &String)> {
    let variables = spec.configuration.base().env.0.iter();
    variables.filter_map(|(name, value)| match value {
        EnvValue::Text(text) => Some((name, text)),
        EnvValue::FromClient => None,
    })
}

/// What the environment refers to and the project does not have, in a sentence; `None`: everything is there. Runs are taken all
/// the same, as by dstack 0.22.5: the secret may be set before the job starts.
pub fn missing_variables(spec: &RunSpec, secrets: &[&str]) -> Option<String> {
    let known = Interpolator::new().namespace("secrets", secrets.iter().map(|name| (name, "")));
    let mut missing: Vec<String> = Vec::new();
    for (variable, text) in texts(spec) {
        let unknown = match known.interpolate_known(text) {
            Ok((_, unknown)) => unknown,
            Err(error) => return Some(format!("Jobs will not start: `{variable}` in `env`: {error}.")),
        };
        for name in unknown {
            let Some(secret) = name.strip_prefix("secrets.") else {
                return Some(format!(
                    "Jobs will not start: `${{{{ {name} }}}}` in `env` means nothing. Write `${{{{ secrets.NAME }}}}`."
                ));
            };
            if !missing.iter().any(|known| known == secret) {
                missing.push(secret.to_owned());
            }
        }
    }
    let first = missing.first()?;
    Some(format!(
        "Jobs will not start: the project has no secret {}, which `env` names. Set it first: `dstack secret set {first} VALUE`.",
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn missing(env: &Value) -> String {
        let spec = json!({"configuration": {"type": "task", "commands": ["x"], "env": env}});
        let spec: RunSpec = serde_json::from_value(spec).unwrap();
        missing_variables(&spec, &["TOKEN"]).unwrap_or_default()
    }

    #[test]
    fn secrets_are_there_or_named() {
        let fine = json!({"A": "x ${{ secrets.TOKEN }}", "B": "$${{ secrets.NONE }}"});
        assert_eq!(missing(&fine), "");
        assert_eq!(
            missing(&json!({"A": "${{ secrets.X }}", "B": "${{ secrets.Y }} ${{ secrets.X }}"})),
            "Jobs will not start: the project has no secret X, Y, which `env` names. Set it first: `dstack secret set X VALUE`."
        );
        let broken = missing(&json!({"A": "${{ secrets.X"}));
        assert!(
            broken.starts_with("Jobs will not start: `A` in `env`: "),
            "{broken}"
        );
        let other = missing(&json!({"A": "${{ run.args }}"}));
        assert!(
            other.contains("`${{ run.args }}` in `env` means nothing"),
            "{other}"
        );
    }
}
