//! What may be shown of an address.

use reqwest::Url;

/// Returns a URL without user, password, query and fragment, all of which may hold keys.
pub fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Both fail for URLs without a host only, which have neither.
    url.set_username("").ok();
    url.set_password(None).ok();
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_shown() {
        let shown = |url: &str| redacted(&Url::parse(url).unwrap());
        assert_eq!(shown("https://me:pw@host:1/a?key=k#f"), "https://host:1/a");
        assert_eq!(shown("data:text,x?y"), "data:text,x");
    }
}
