//! Who asks, and signatures of requests ("Request Signatures", OCI documentation: `rsa-sha256` of draft-cavage-http-signatures).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use dstack_compute::config::{Credential, OciClientCreds, OciCreds, OciDefaultCreds};
use dstack_http::Signer;
use dstack_system::clock::SharedClock;
use dstack_system::env;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST};
use http::{HeaderName, HeaderValue, Request};
use russh::keys::{decode_secret_key, pkcs8};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;
use sha2::{Digest as _, Sha256};

/// A user with a key.
#[derive(Clone)]
pub(crate) struct Account {
    pub(crate) tenancy: String,
    /// The region that the credentials name: any that the tenancy has.
    pub(crate) region: String,
    /// `tenancy/user/fingerprint`.
    key_id: String,
    key: Arc<dyn SigningKey>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("tenancy", &self.tenancy)
            .finish_non_exhaustive()
    }
}

/// Why credentials cannot be used: the field at fault, and what is wrong with it.
pub(crate) type Wrong = (&'static str, String);

impl Account {
    /// Reads the key, which may be in a file of this machine.
    pub(crate) fn of(creds: &OciCreds) -> Result<Self, Wrong> {
        match creds {
            OciCreds::Client(creds) => Self::of_client(creds),
            OciCreds::Default(creds) => Self::of_profile(creds),
        }
    }

    fn of_client(creds: &OciClientCreds) -> Result<Self, Wrong> {
        let phrase = creds.pass_phrase.as_ref().map(Credential::expose);
        let (field, pem) = match (&creds.key_content, &creds.key_file) {
            (Some(content), _) if !content.expose().is_empty() => {
                ("key_content", content.expose().to_owned())
            }
            (_, file) => (
                "key_file",
                read(file.as_deref().unwrap_or_default()).map_err(|why| ("key_file", why))?,
            ),
        };
        let key = private_key(&pem, phrase).map_err(|why| (field, why))?;
        Self::new(
            [&creds.tenancy, &creds.user, &creds.fingerprint],
            &creds.region,
            key,
        )
    }

    /// A profile of the file that OCI's own programs have.
    fn of_profile(creds: &OciDefaultCreds) -> Result<Self, Wrong> {
        let text = read(&creds.file).map_err(|why| ("file", why))?;
        let profile = profile(&text, &creds.profile).ok_or_else(|| {
            (
                "profile",
                format!("{} has no profile {}", creds.file, creds.profile),
            )
        })?;
        let field = |name: &str| {
            let missing = || ("profile", format!("profile {} has no `{name}`", creds.profile));
            profile.get(name).cloned().ok_or_else(missing)
        };
        let pem = read(&field("key_file")?).map_err(|why| ("profile", why))?;
        let phrase = profile.get("pass_phrase").map(String::as_str);
        let key = private_key(&pem, phrase).map_err(|why| ("profile", why))?;
        let (tenancy, user, fingerprint) = (field("tenancy")?, field("user")?, field("fingerprint")?);
        Self::new([&tenancy, &user, &fingerprint], &field("region")?, key)
    }

    fn new(id: [&str; 3], region: &str, key: Arc<dyn SigningKey>) -> Result<Self, Wrong> {
        for (field, part) in ["tenancy", "user", "fingerprint"].into_iter().zip(id) {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
            if part.is_empty() || !part.bytes().all(is_plain) {
                return Err((field, "it is not one of OCI".to_owned()));
            }
        }
        if !is_region(region) {
            return Err(("region", "it is no region of OCI".to_owned()));
        }
        let [tenancy, ..] = id;
        Ok(Self {
            tenancy: tenancy.to_owned(),
            region: region.to_owned(),
            key_id: id.join("/"),
            key,
        })
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        let signer = self.key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]);
        let signer = signer.ok_or("the key is no RSA key")?;
        let signature = signer.sign(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(BASE64_STANDARD.encode(signature))
    }
}

/// Regions stand in the names of hosts.
pub(crate) fn is_region(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.bytes().all(is_plain)
}

/// More than any key or profile has.
const LONGEST_FILE: u64 = 64 * 1024;

/// A file of this machine; `~` is the home of the server's user.
fn read(path: &str) -> Result<String, String> {
    let path = match path.strip_prefix("~/") {
        Some(rest) => env::home().unwrap_or_default().join(rest),
        None => path.into(),
    };
    // Others, such as devices and pipes, may have no end.
    let is_small_file = fs_err::metadata(&path)
        .map(|found| found.is_file() && found.len() <= LONGEST_FILE)
        .map_err(|error| error.to_string())?;
    match is_small_file {
        true => fs_err::read_to_string(path).map_err(|error| error.to_string()),
        false => Err("it is no file of at most 64 KiB".to_owned()),
    }
}

/// In PEM (PKCS#1 or PKCS#8, with a passphrase or without).
fn private_key(pem: &str, phrase: Option<&str>) -> Result<Arc<dyn SigningKey>, String> {
    // OCI's console puts a line below the key, which is no part of it.
    let end = pem.rfind("-----").map_or(pem.len(), |at| at + 5);
    let pem = pem.get(..end).unwrap_or(pem).trim();
    let der = match pem.contains("ENCRYPTED") {
        true => opened(pem, phrase.filter(|phrase| !phrase.is_empty()))?,
        false => PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| format!("it cannot be read: {error}"))?,
    };
    let key = any_supported_type(&der).map_err(|error| format!("it cannot be used: {error}"))?;
    match key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]) {
        Some(_) => Ok(key),
        None => Err("it is no RSA key".to_owned()),
    }
}

fn opened(pem: &str, phrase: Option<&str>) -> Result<PrivateKeyDer<'static>, String> {
    let key = decode_secret_key(&format!("{pem}\n"), phrase)
        .map_err(|error| format!("it cannot be read with this passphrase: {error}"))?;
    let der = pkcs8::encode_pkcs8(&key).map_err(|error| format!("it cannot be used: {error}"))?;
    Ok(PrivatePkcs8KeyDer::from(der).into())
}

/// The fields of a section of an INI file, with those of `DEFAULT` where it has none.
fn profile(text: &str, name: &str) -> Option<HashMap<String, String>> {
    let (mut section, mut is_there) = (String::new(), false);
    let (mut common, mut own) = (HashMap::new(), HashMap::new());
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            header.trim_end_matches(']').trim().clone_into(&mut section);
            is_there |= section == name;
        } else if let Some((field, value)) = line.split_once('=').filter(|_| !line.starts_with(['#', ';'])) {
            let (field, value) = (field.trim().to_owned(), value.trim().to_owned());
            if section == name {
                own.insert(field, value);
            } else if section == "DEFAULT" {
                common.insert(field, value);
            }
        }
    }
    common.extend(own);
    is_there.then_some(common)
}

/// Signs requests as one user.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) clock: SharedClock,
    pub(crate) account: Account,
}

impl Signer for Signature {
    fn sign(&self, request: &mut Request<Bytes>) -> Result<(), String> {
        let now = self.clock.now().to_jiff();
        let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let method = request.method().as_str().to_ascii_lowercase();
        let uri = request.uri();
        let host = uri.authority().ok_or("the address has no host")?.to_string();
        let target = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut lines = vec![
            ("date", date.clone()),
            ("(request-target)", format!("{method} {target}")),
            ("host", host.clone()),
        ];
        let mut headers = vec![(DATE, date), (HOST, host)];
        if matches!(method.as_str(), "post" | "put" | "patch") {
            let body = request.body();
            let (length, json) = (body.len().to_string(), "application/json".to_owned());
            let digest = BASE64_STANDARD.encode(Sha256::digest(body));
            lines.push(("content-length", length.clone()));
            lines.push(("content-type", json.clone()));
            lines.push(("x-content-sha256", digest.clone()));
            headers.push((CONTENT_LENGTH, length));
            headers.push((CONTENT_TYPE, json));
            headers.push((HeaderName::from_static("x-content-sha256"), digest));
        }
        let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
        let text: Vec<String> = lines
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let signature = self.account.sign(&text.join("\n"))?;
        let authorization = format!(
            "Signature version=\"1\",keyId=\"{}\",algorithm=\"rsa-sha256\",headers=\"{}\",signature=\"{signature}\"",
            self.account.key_id,
            names.join(" ")
        );
        headers.push((AUTHORIZATION, authorization));
        for (name, value) in headers {
            let mut value = HeaderValue::from_str(&value).map_err(|_| format!("{name} is no header"))?;
            value.set_sensitive(name == AUTHORIZATION);
            request.headers_mut().insert(name, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_the_fields_of_the_default_one() {
        let text = "[DEFAULT]\nuser = u\nregion=r\n# key_file=no\n\n[ other ]\nregion = s\n";
        let other = profile(text, "other").unwrap();
        assert_eq!((other["user"].as_str(), other["region"].as_str()), ("u", "s"));
        assert_eq!(other.get("# key_file"), None);
        assert_eq!(profile(text, "third"), None);
    }

    #[test]
    fn keys_are_read_with_their_passphrase() {
        const KEY: &str = include_str!("../emulator/key.pem");
        const ENCRYPTED: &str = include_str!("../emulator/key_encrypted.pem");
        for (key, phrase) in [
            (KEY, None),
            (KEY, Some("any")),
            (ENCRYPTED, Some("canary-0f1e2d3c")),
        ] {
            private_key(&format!("{key}OCI_API_KEY\n"), phrase).unwrap();
        }
        for (key, phrase) in [
            (ENCRYPTED, None),
            (ENCRYPTED, Some("wrong")),
            ("", None),
            ("-----", None),
        ] {
            private_key(key, phrase).unwrap_err();
        }
    }
}
