//! Who may log in.

use dstack_control::login::Person as Proven;
use dstack_model::users::GlobalRole;
use dstack_store::queries::identities::Identity;

use super::config::ProviderConfig;

/// Somebody with an account, as the provider has proven it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Person {
    /// The account, for ever.
    pub(crate) identity: Identity,
    /// What they are called there: a name of a user is made of it.
    pub(crate) login: String,
    /// Their e-mail address, if the provider has verified it.
    pub(crate) email: Option<String>,
    /// E-mail domains that they belong to beyond doubt.
    pub(crate) domains: Vec<String>,
    /// Those of the allowed organisations that they are a member of.
    pub(crate) organizations: Vec<String>,
}

impl Person {
    /// What decides which user they are.
    pub(crate) fn proven(&self) -> Proven {
        Proven {
            identity: self.identity.clone(),
            login: self.login.clone(),
            email: self.email.clone(),
        }
    }
}

/// Who may come from a provider, and as what.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    allowed_domains: Vec<String>,
    pub(crate) allowed_organizations: Vec<String>,
    pub(crate) sign_up: bool,
    pub(crate) link_by_email: bool,
    pub(crate) global_role: GlobalRole,
    pub(crate) projects: Vec<String>,
}

impl Policy {
    pub(super) fn new(config: &ProviderConfig) -> Self {
        let policy = config.policy().clone();
        Self {
            allowed_domains: policy.allowed_domains,
            allowed_organizations: config.allowed_organizations().to_vec(),
            sign_up: policy.sign_up,
            link_by_email: policy.link_by_email,
            global_role: policy.global_role,
            projects: policy.projects,
        }
    }

    /// Why they may not log in, known or not.
    pub(crate) fn refusal(&self, person: &Person) -> Option<String> {
        let other = "Log in with another account, or ask the server's administrator";
        let anyone = self.allowed_domains.iter().any(|domain| domain == "*");
        if !self.allowed_domains.is_empty() && !anyone && !share(&self.allowed_domains, &person.domains) {
            return Some(format!(
                "{} may not log in here: the account has no verified e-mail address at {}. {other}",
                person.login,
                self.allowed_domains.join(" or ")
            ));
        }
        if !self.allowed_organizations.is_empty()
            && !share(&self.allowed_organizations, &person.organizations)
        {
            return Some(format!(
                "{} may not log in here: the account is not known as a member of {}. {other}",
                person.login,
                self.allowed_organizations.join(" or ")
            ));
        }
        None
    }
}

fn share(some: &[String], others: &[String]) -> bool {
    some.iter()
        .any(|one| others.iter().any(|other| one.eq_ignore_ascii_case(other)))
}

/// The domain of an e-mail address.
pub(super) fn domain(email: &str) -> Option<&str> {
    email.rsplit_once('@').map(|(_, domain)| domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(domains: &[&str], organizations: &[&str]) -> Policy {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Policy {
            allowed_domains: owned(domains),
            allowed_organizations: owned(organizations),
            sign_up: true,
            link_by_email: false,
            global_role: GlobalRole::User,
            projects: Vec::new(),
        }
    }

    fn person(domains: &[&str], organizations: &[&str]) -> Person {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Person {
            identity: Identity {
                issuer: "https://github.com".into(),
                subject: "1".into(),
            },
            login: "octocat".into(),
            email: None,
            domains: owned(domains),
            organizations: owned(organizations),
        }
    }

    #[test]
    fn every_configured_condition_must_hold() {
        let both = policy(&["acme.com", "acme.org"], &["acme"]);
        assert_eq!(both.refusal(&person(&["ACME.org"], &["Acme"])), None);
        let refused = both
            .refusal(&person(&["evil.com", "notacme.com"], &["acme"]))
            .unwrap();
        assert!(
            refused.contains("octocat") && refused.contains("acme.com or acme.org"),
            "{refused}"
        );
        let refused = both.refusal(&person(&["acme.com"], &["other"])).unwrap();
        assert!(refused.contains("a member of acme"), "{refused}");
    }

    #[test]
    fn a_star_is_anyone_and_no_condition_is_none() {
        assert_eq!(policy(&["*"], &[]).refusal(&person(&[], &[])), None);
        assert_eq!(policy(&[], &[]).refusal(&person(&[], &[])), None);
        assert!(policy(&["*"], &["acme"]).refusal(&person(&[], &[])).is_some());
    }
}
