//! Parses image references into repository and tag or digest.

/// A reference with its tag or digest named: without one, the engine would pull every tag there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Registry and repository.
    pub repository: String,
    /// A tag, or `sha256:…`.
    pub tag: String,
}

impl Reference {
    /// `latest` unless a tag or digest is given.
    pub fn parse(name: &str) -> Self {
        if let Some((repository, digest)) = name.split_once('@') {
            // The engine refuses a tag beside a digest.
            let repository = split_tag(repository).map_or(repository, |(repository, _)| repository);
            return Self {
                repository: repository.to_owned(),
                tag: digest.to_owned(),
            };
        }
        let (repository, tag) = split_tag(name).unwrap_or((name, "latest"));
        Self {
            repository: repository.to_owned(),
            tag: tag.to_owned(),
        }
    }

    /// Whether the image is looked up again each time.
    pub fn is_latest(&self) -> bool {
        self.tag.starts_with("latest")
    }

    /// As other calls of the engine want it.
    pub fn full(&self) -> String {
        let separator = if self.tag.contains(':') { '@' } else { ':' };
        format!("{}{separator}{}", self.repository, self.tag)
    }
}

/// A colon after the last slash starts the tag; one before belongs to the registry's port.
fn split_tag(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        for (name, repository, tag, full) in [
            ("ubuntu", "ubuntu", "latest", "ubuntu:latest"),
            ("ubuntu:24.04", "ubuntu", "24.04", "ubuntu:24.04"),
            (
                "localhost:5000/a/b",
                "localhost:5000/a/b",
                "latest",
                "localhost:5000/a/b:latest",
            ),
            (
                "localhost:5000/a:1",
                "localhost:5000/a",
                "1",
                "localhost:5000/a:1",
            ),
            ("a/b@sha256:00", "a/b", "sha256:00", "a/b@sha256:00"),
            ("a/b:1@sha256:00", "a/b", "sha256:00", "a/b@sha256:00"),
        ] {
            let parsed = Reference::parse(name);
            assert_eq!(
                (
                    parsed.repository.as_str(),
                    parsed.tag.as_str(),
                    parsed.full().as_str()
                ),
                (repository, tag, full)
            );
        }
        assert!(Reference::parse("ubuntu").is_latest() && !Reference::parse("a@sha256:00").is_latest());
    }
}
