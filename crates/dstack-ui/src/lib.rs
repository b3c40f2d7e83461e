//! The files of the web page, as `cargo xtask ui` built them into `ui/dist/app`; none where it was not built, so that
//! everything compiles without node. A crate of its own: what is compiled again after the page has changed is this, and the binary.

/// A built file, in the encodings that a browser may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its path below the page, such as `assets/index-Do4sFYVp.js`.
    pub path: &'static str,
    /// Content of the file, not compressed.
    pub plain: &'static [u8],
    /// The same, packed with brotli where that is smaller.
    pub brotli: Option<&'static [u8]>,
    /// The same, packed with gzip where that is smaller.
    pub gzip: Option<&'static [u8]>,
}

/// All of them, by path.
pub const FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_built_is_whole() {
        if FILES.is_empty() {
            println!("skipped: the page was not built (cargo xtask ui)");
            return;
        }
        let find = |path: &str| FILES.iter().find(|file| file.path == path);
        let page = std::str::from_utf8(find("index.html").unwrap().plain).unwrap();
        assert!(page.contains("<base href=\"/\""), "{page}");
        let named = page.split('"').filter_map(|part| part.strip_prefix("./"));
        let named: Vec<&str> = named.collect();
        assert!(
            named.len() >= 3 && named.iter().all(|path| find(path).is_some()),
            "{named:?}"
        );
        let script = FILES.iter().find(|file| file.path.ends_with(".js")).unwrap();
        assert!(
            script
                .brotli
                .is_some_and(|packed| packed.len() < script.plain.len())
        );
        assert!(
            script
                .gzip
                .is_some_and(|packed| packed.len() < script.plain.len())
        );
        assert!(
            FILES
                .iter()
                .all(|file| !file.path.ends_with(".br") && !file.path.ends_with(".map"))
        );
    }
}
