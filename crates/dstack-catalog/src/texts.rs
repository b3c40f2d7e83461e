//! Interned texts: each distinct one is stored once.

use rustc_hash::FxHashMap;

/// Number of a text in its [`Texts`].
pub(crate) type TextId = u32;

/// Distinct texts, end to end in one allocation.
#[derive(Debug, Default, Clone)]
pub(crate) struct Texts {
    all: Box<str>,
    /// Where each text ends.
    ends: Box<[u32]>,
}

impl Texts {
    /// The text of that number; empty when there is none.
    pub(crate) fn get(&self, id: TextId) -> &str {
        let at = id as usize;
        let Some(end) = self.ends.get(at) else { return "" };
        let start = at
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied()
            .unwrap_or(0);
        self.all.get(start as usize..*end as usize).unwrap_or("")
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn parts(&self) -> (&str, &[u32]) {
        (&self.all, &self.ends)
    }

    /// From stored parts; `None` when they do not fit together.
    pub(crate) fn from_parts(all: String, ends: Vec<u32>) -> Option<Self> {
        let mut last = 0;
        for end in &ends {
            if *end < last || !all.is_char_boundary(*end as usize) {
                return None;
            }
            last = *end;
        }
        (last as usize == all.len()).then(|| Self {
            all: all.into(),
            ends: ends.into(),
        })
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.all.len() + 4 * self.ends.len()
    }
}

/// Collects texts, each once, and numbers them.
#[derive(Debug, Default)]
pub(crate) struct TextsBuilder {
    all: String,
    ends: Vec<u32>,
    ids: FxHashMap<Box<str>, TextId>,
}

impl TextsBuilder {
    /// The number of a text, new or known.
    pub(crate) fn intern(&mut self, text: &str) -> TextId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.ends.len() as TextId;
        self.all.push_str(text);
        self.ends.push(self.all.len() as u32);
        self.ids.insert(text.into(), id);
        id
    }

    /// Bytes collected so far.
    pub(crate) fn bytes(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn finish(self) -> Texts {
        Texts {
            all: self.all.into(),
            ends: self.ends.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_a_number() {
        let mut builder = TextsBuilder::default();
        let ids = ["a", "", "bü", "a", ""].map(|text| builder.intern(text));
        assert_eq!(ids, [0, 1, 2, 0, 1]);
        let texts = builder.finish();
        assert_eq!(
            (texts.get(0), texts.get(1), texts.get(2), texts.get(3)),
            ("a", "", "bü", "")
        );
        let (all, ends) = texts.parts();
        assert!(Texts::from_parts(all.to_owned(), ends.to_vec()).is_some());
        assert!(
            Texts::from_parts("bü".into(), vec![2]).is_none(),
            "inside a character"
        );
        assert!(Texts::from_parts("ab".into(), vec![2, 1]).is_none(), "descending");
    }
}
