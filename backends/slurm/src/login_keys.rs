//! Keys that may log in at a login node to be let through to nodes, and for nothing else.
//!
//! Each line of `authorized_keys` that a job adds ends with the name of the job: when the job is gone, its lines are removed, and no
//! others. What is not ours is left as it is.

use dstack_units::quoting::shell_word;

/// What an added line ends with, before the name of the job.
const MARK: &str = "dstack-job=";

/// Both scripts: the file, the real one where it is a link, and nobody of us else who changes it at the same time.
const PRELUDE: &str = r#"set -eu
umask 077
folder=$HOME/.ssh
file=$folder/authorized_keys
if [ -L "$file" ]; then file=$(readlink -f "$file"); fi
lock() {
  if command -v flock >/dev/null 2>&1; then
    exec 9>"$folder/.dstack.lock"
    flock -w 10 9 || { echo "$file is locked by somebody else" >&2; exit 1; }
  fi
}"#;

/// The script that adds keys for a job, unless it was done; `None`: there are none. Keys are lines `type base64 [comment]`.
pub(crate) fn add_script(job_name: &str, keys: &[String]) -> Option<String> {
    let lines: Vec<String> = keys.iter().filter_map(|key| line(job_name, key)).collect();
    let last = lines.last()?;
    Some(format!(
        "{PRELUDE}\nmkdir -p \"$folder\"\nlock\n[ -e \"$file\" ] || : >\"$file\"\n\
         if ! grep -qxF -- {} \"$file\"; then\n\
         if [ -n \"$(tail -c 1 \"$file\")\" ]; then echo >>\"$file\"; fi\n\
         printf '%s\\n' {} >>\"$file\"\nfi",
        shell_word(last),
        shell_word(&lines.join("\n")),
    ))
}

/// The script that removes the keys of a job.
pub(crate) fn remove_script(job_name: &str) -> String {
    let mark = shell_word(&format!(" {MARK}{job_name}$")).into_owned();
    format!(
        "{PRELUDE}\n[ -e \"$file\" ] || exit 0\nlock\ngrep -q -- {mark} \"$file\" || exit 0\n\
         new=$(mktemp \"$file.XXXXXX\")\ncp -p \"$file\" \"$new\"\n\
         grep -v -- {mark} \"$file\" >\"$new\" || [ $? = 1 ]\nmv -f \"$new\" \"$file\""
    )
}

/// The script that prints the names of jobs that have keys.
pub(crate) fn list_script() -> String {
    format!(
        "{PRELUDE}\n[ -e \"$file\" ] || exit 0\nsed -n 's/.* {MARK}\\([a-z0-9-]\\{{1,\\}}\\)$/\\1/p' \"$file\" | sort -u"
    )
}

/// The line of a key; `None`: it is no key that could stand in the file.
fn line(job_name: &str, key: &str) -> Option<String> {
    let mut words = key.split(' ').filter(|word| !word.is_empty());
    let (kind, blob) = (words.next()?, words.next()?);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+/=-_.@".contains(c);
    let is_line = kind.chars().chain(blob.chars()).all(is_plain);
    is_line.then(|| format!("command=\"/bin/false\" {kind} {blob} {MARK}{job_name}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn run(home: &Path, script: &str) -> String {
        let output = Command::new("sh")
            .args(["-c", script])
            .env("HOME", home)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn file(home: &Path) -> String {
        fs_err::read_to_string(home.join(".ssh/authorized_keys")).unwrap()
    }

    #[test]
    fn keys_of_a_job_come_and_go_with_it() {
        let home = tempfile::tempdir().unwrap();
        let add = |job: &str| {
            add_script(
                job,
                &["ssh-rsa AAAA me@here".to_owned(), "ssh-rsa BBBB".to_owned()],
            )
            .unwrap()
        };
        assert_eq!(run(home.path(), &list_script()), "");
        run(home.path(), &remove_script("dstack-a"));
        run(home.path(), &add("dstack-a"));
        let mine = "# mine\nssh-rsa CCCC dstack-job=";
        let first = file(home.path());
        // Without an end of the line.
        fs_err::write(home.path().join(".ssh/authorized_keys"), format!("{first}{mine}")).unwrap();
        for _ in 0..2 {
            run(home.path(), &add("dstack-a-b"));
            run(home.path(), &add("dstack-a"));
        }
        assert_eq!(
            file(home.path()),
            format!(
                "command=\"/bin/false\" ssh-rsa AAAA dstack-job=dstack-a\ncommand=\"/bin/false\" ssh-rsa BBBB dstack-job=dstack-a\n\
                 {mine}\n\
                 command=\"/bin/false\" ssh-rsa AAAA dstack-job=dstack-a-b\ncommand=\"/bin/false\" ssh-rsa BBBB dstack-job=dstack-a-b\n"
            )
        );
        assert_eq!(run(home.path(), &list_script()), "dstack-a\ndstack-a-b\n");
        run(home.path(), &remove_script("dstack-a"));
        assert_eq!(run(home.path(), &list_script()), "dstack-a-b\n");
        run(home.path(), &remove_script("dstack-a-b"));
        assert_eq!(file(home.path()), format!("{mine}\n"));
    }

    #[test]
    fn a_file_of_our_lines_only_is_empty_afterwards_and_a_link_stays_one() {
        let home = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (home.path().join(".ssh"), home.path().join("keys"));
        fs_err::create_dir_all(&folder).unwrap();
        fs_err::write(&elsewhere, "").unwrap();
        fs_err::os::unix::fs::symlink(&elsewhere, folder.join("authorized_keys")).unwrap();
        run(
            home.path(),
            &add_script("dstack-a", &["ssh-rsa AAAA".to_owned()]).unwrap(),
        );
        assert!(
            fs_err::read_to_string(&elsewhere)
                .unwrap()
                .ends_with("dstack-job=dstack-a\n")
        );
        run(home.path(), &remove_script("dstack-a"));
        assert_eq!(fs_err::read_to_string(&elsewhere).unwrap(), "");
        assert!(folder.join("authorized_keys").is_symlink());
    }

    #[test]
    fn what_is_no_key_is_left_out() {
        assert_eq!(
            add_script(
                "j",
                &["ssh-rsa".to_owned(), "a \"b\"".to_owned(), "x y\nz".to_owned()]
            ),
            None
        );
        assert_eq!(
            line("j", " ssh-rsa  AAAA  it's mine").unwrap(),
            "command=\"/bin/false\" ssh-rsa AAAA dstack-job=j"
        );
    }
}
