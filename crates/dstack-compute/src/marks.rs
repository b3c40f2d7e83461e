use dstack_units::{InstallationId, ProjectId};
use uuid::Uuid;

/// What every thing carries that is made in a cloud, in its name or tags, so that it is found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// The installation (all servers on one database): several may use one account.
    pub installation: InstallationId,
    /// Key of the request: the id of the row that the thing is made for. There is at most one thing of a kind under it.
    pub key: Uuid,
    /// Name of the row, for people.
    pub name: String,
    /// Project that the thing is for.
    pub project: ProjectId,
}

/// How every name begins.
const PREFIX: &str = "dstack-";

/// Tag with the installation.
pub const INSTALLATION_TAG: &str = "dstack_installation";

/// Tag with the key.
pub const KEY_TAG: &str = "dstack_key";

/// What names say of whom something belongs to: enough to find it, for a cloud without tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameCode {
    installation: u32,
    key: u64,
}

impl NameCode {
    /// Length of its text.
    const LENGTH: usize = 8 + 1 + 12;

    /// Reads the code of a name; `None`: the name is not of this kind.
    pub fn read(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX)?;
        let code = rest.get(rest.len().checked_sub(Self::LENGTH)?..)?;
        let (installation, key) = code.split_once('-')?;
        Some(Self {
            installation: hex(installation, 8)?.try_into().ok()?,
            key: hex(key, 12)?,
        })
    }

    /// Whether it is of this installation.
    pub fn is_of(self, installation: InstallationId) -> bool {
        self.installation == installation_code(installation)
    }

    /// The end of the key, as its text has it: 12 hexadecimal digits.
    pub fn key_digits(self) -> String {
        format!("{:012x}", self.key)
    }
}

impl std::fmt::Display for NameCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:012x}", self.installation, self.key)
    }
}

/// The letters and digits of a name, lower-case, with one hyphen for all that is between them.
fn hyphened(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let parts = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

/// Only lower-case digits, as they were written.
fn hex(text: &str, length: usize) -> Option<u64> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = text.len() == length && text.bytes().all(is_digit);
    u64::from_str_radix(text, 16).ok().filter(|_| fits)
}

/// The last bits of an id are random in all versions of ids; the first may be a time.
const fn installation_code(installation: InstallationId) -> u32 {
    (installation.uuid().as_u128() & 0xffff_ffff) as u32
}

impl Marks {
    /// The fewest characters that a name has with its code.
    pub const SHORTEST_NAME: usize = PREFIX.len() + NameCode::LENGTH;

    /// The code in the names of what carries these marks.
    pub const fn code(&self) -> NameCode {
        NameCode {
            installation: installation_code(self.installation),
            key: (self.key.as_u128() & 0xffff_ffff_ffff) as u64,
        }
    }

    /// A name of at most `longest` characters of `[a-z0-9-]`, the same at each call: `dstack-<name>-<code>`. Of the row's name,
    /// there is as much in it as fits. No hyphen follows another, and none is at the end: some vendors refuse that.
    pub fn name(&self, longest: usize) -> String {
        let code = self.code();
        let room = longest.saturating_sub(PREFIX.len() + NameCode::LENGTH + 1);
        let plain: String = hyphened(&self.name).chars().take(room).collect();
        match plain.trim_end_matches('-') {
            "" => format!("{PREFIX}{code}"),
            plain => format!("{PREFIX}{plain}-{code}"),
        }
    }

    /// Tags for clouds that have them: whole, so that nothing is ever mistaken.
    pub fn tags(&self) -> [(&'static str, String); 2] {
        [
            (INSTALLATION_TAG, self.installation.to_string()),
            (KEY_TAG, self.key.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(name: &str) -> Marks {
        Marks {
            installation: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ab".parse().unwrap(),
            name: name.to_owned(),
            project: "0f8fad5b-d9cb-469f-a165-708677289500".parse().unwrap(),
        }
    }

    #[test]
    fn names_fit_and_lead_back() {
        for (name, longest, expected) in [
            ("train-0-0", 60, "dstack-train-0-0-7728950e-0123456789ab"),
            ("Große Läufe", 60, "dstack-gro-e-l-ufe-7728950e-0123456789ab"),
            ("train-0-0", 33, "dstack-trai-7728950e-0123456789ab"),
            ("train-0-0", 28, "dstack-7728950e-0123456789ab"),
            ("---", 60, "dstack-7728950e-0123456789ab"),
            ("a--b_-ü€c-", 60, "dstack-a-b-c-7728950e-0123456789ab"),
            ("tra--in", 33, "dstack-tra-7728950e-0123456789ab"),
        ] {
            let marks = marks(name);
            let made = marks.name(longest);
            assert_eq!(made, expected);
            assert!(made.len() <= longest, "{made}");
            let code = NameCode::read(&made).unwrap();
            assert_eq!(code, marks.code());
            assert!(marks.key.to_string().ends_with(&code.key_digits()));
            assert!(code.is_of(marks.installation));
        }
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for name in [
            "",
            "dstack-",
            "dstack-train-x7k2m9qa",
            "train-7728950e-0123456789ab",
            "dstack-7728950E-0123456789ab",
            "dstack-+728950e-0123456789ab",
            "dstack-ü7728950e-0123456789a",
        ] {
            assert_eq!(NameCode::read(name), None, "{name}");
        }
        let other = "0f8fad5b-d9cb-469f-a165-70867728950f".parse().unwrap();
        let code = NameCode::read(&marks("x").name(60)).unwrap();
        assert!(!code.is_of(other));
    }
}
