//! A repository on this machine: its remote, branch and commit, and what is not pushed yet.

use std::path::Path;
use std::time::Duration;

use super::git::{Printed, run};
use crate::error::{CliError, ErrorKind};
use crate::ui::Ui;

/// After so long, a large diff is explained.
const SLOW: Duration = Duration::from_secs(5);
const SLOW_HINT: &str = "Provisioning is taking longer than usual, possibly because of having too many or large local files \
that haven't been pushed to Git. Tip: Exclude unnecessary files from provisioning by using the `.gitignore` file.";

/// A work tree's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkTree {
    /// URL of the remote that the branch follows.
    pub url: String,
    /// Branch on that remote.
    pub branch: String,
    /// Commit of that branch as last fetched.
    pub hash: String,
    /// Git's setting `user.name`.
    pub user_name: Option<String>,
    /// Git's setting `user.email`.
    pub user_email: Option<String>,
    /// Binary patch from the commit to the work tree, untracked files included. Empty when nothing differs.
    pub diff: Vec<u8>,
}

/// Reads the work tree at `folder`.
///
/// # Errors
/// Not a repository, a detached head, no remote branch, no git program.
pub async fn read(folder: &Path, ui: &Ui) -> Result<WorkTree, CliError> {
    if !folder.is_dir() {
        let problem = if folder.exists() {
            "Path is not a directory"
        } else {
            "Path does not exist"
        };
        return Err(CliError::new(
            ErrorKind::Repo,
            format!("{problem}: {}", folder.display()),
        ));
    }
    let root = toplevel(folder).await?;
    if !run(folder, &["symbolic-ref", "-q", "HEAD"], &[]).await?.ok {
        return Err(CliError::new(
            ErrorKind::Repo,
            format!("Git repo in 'detached HEAD' state: {}", folder.display()),
        )
        .hint("check out a branch"));
    }
    let no_remote = || {
        CliError::new(
            ErrorKind::Repo,
            format!("No remote branch is configured: {}", folder.display()),
        )
        .hint("push the branch once with `git push -u`, or pass `--no-repo`")
    };
    let upstream = ok(&run(folder, &["rev-parse", "--symbolic-full-name", "@{upstream}"], &[]).await?)
        .ok_or_else(no_remote)?;
    let (remote, branch) = upstream
        .strip_prefix("refs/remotes/")
        .and_then(|name| name.split_once('/'))
        .ok_or_else(no_remote)?;
    let url = ok(&run(folder, &["remote", "get-url", remote], &[]).await?).ok_or_else(no_remote)?;
    let hash = ok(&run(folder, &["rev-parse", "@{upstream}"], &[]).await?).ok_or_else(no_remote)?;
    let setting = async |name: &str| {
        run(folder, &["config", "--get", name], &[])
            .await
            .ok()
            .and_then(|printed| ok(&printed))
    };
    Ok(WorkTree {
        user_name: setting("user.name").await,
        user_email: setting("user.email").await,
        diff: diff(Path::new(&root), &hash, ui).await?,
        branch: branch.to_owned(),
        url,
        hash,
    })
}

async fn toplevel(folder: &Path) -> Result<String, CliError> {
    // The folder itself must be the work tree's root, as in dstack 0.22.5: a subfolder would send the whole tree.
    let found = ok(&run(folder, &["rev-parse", "--show-toplevel"], &[]).await?);
    let is_root = folder.join(".git").exists();
    found.filter(|_| is_root).ok_or_else(|| {
        CliError::new(ErrorKind::Repo, format!("Git repo not found: {}", folder.display()))
            .hint("to take along a directory that is no Git repo, name it in the configuration: `files: [./directory]`")
    })
}

/// Text that a successful git printed, unless it printed nothing.
fn ok(printed: &Printed) -> Option<String> {
    printed.ok.then(|| printed.text()).filter(|text| !text.is_empty())
}

async fn diff(root: &Path, hash: &str, ui: &Ui) -> Result<Vec<u8>, CliError> {
    let collect = collect(root, hash);
    tokio::pin!(collect);
    tokio::select! {
        diff = &mut collect => return diff,
        () = tokio::time::sleep(SLOW) => {}
    }
    ui.say(SLOW_HINT);
    let diff = collect.await;
    ui.blank();
    diff
}

async fn collect(root: &Path, hash: &str) -> Result<Vec<u8>, CliError> {
    let tracked = run(
        root,
        &["diff", "--no-color", "--no-ext-diff", "--binary", hash],
        &[],
    )
    .await?;
    if !tracked.ok {
        return Err(CliError::new(
            ErrorKind::Repo,
            format!(
                "cannot compare the work tree with commit {hash}: {}",
                tracked.stderr
            ),
        )
        .hint("run `git fetch`"));
    }
    let mut diff = tracked.stdout;
    let untracked = run(root, &["ls-files", "--others", "--exclude-standard", "-z"], &[]).await?;
    for name in untracked
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let name = String::from_utf8_lossy(name);
        // Exit status 1 means "there are differences".
        let arguments = [
            "diff",
            "--no-color",
            "--no-ext-diff",
            "--binary",
            "--no-index",
            "--",
            "/dev/null",
            &name,
        ];
        diff.extend(run(root, &arguments, &[]).await?.stdout);
    }
    Ok(diff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Access, replace};

    async fn git(folder: &Path, arguments: &[&str]) {
        let isolated = [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ];
        let printed = run(folder, arguments, &isolated).await.unwrap();
        assert!(printed.ok, "git {arguments:?}: {}", printed.stderr);
    }

    async fn clone(folder: &Path) -> std::path::PathBuf {
        let (origin, work) = (folder.join("origin"), folder.join("work"));
        git(folder, &["init", "-q", "-b", "main", "origin"]).await;
        git(&origin, &["config", "user.name", "Me"]).await;
        git(&origin, &["config", "user.email", "me@example.com"]).await;
        replace(&origin.join("a.txt"), b"one\n", Access::Normal).unwrap();
        git(&origin, &["add", "."]).await;
        git(&origin, &["commit", "-q", "-m", "first"]).await;
        git(folder, &["clone", "-q", "origin", "work"]).await;
        work
    }

    #[tokio::test]
    async fn changes_and_untracked_files_are_in_the_patch() {
        let folder = tempfile::tempdir().unwrap();
        let (ui, _) = Ui::captured(80, "");
        let work = clone(folder.path()).await;
        let clean = read(&work, &ui).await.unwrap();
        assert_eq!(
            (clean.branch.as_str(), clean.diff.len(), clean.hash.len()),
            ("main", 0, 40)
        );
        assert!(clean.url.ends_with("origin"));
        replace(&work.join("a.txt"), b"two\n", Access::Normal).unwrap();
        replace(&work.join("new file.bin"), &[0, 1, 2, 255], Access::Normal).unwrap();
        let dirty = String::from_utf8(read(&work, &ui).await.unwrap().diff).unwrap();
        assert!(
            dirty.contains("+two") && dirty.contains("GIT binary patch"),
            "{dirty}"
        );
    }

    #[tokio::test]
    async fn what_is_no_usable_repository_is_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let (ui, _) = Ui::captured(80, "");
        let message = async |path: &Path| read(path, &ui).await.unwrap_err().message().unwrap().to_owned();
        assert!(message(folder.path()).await.starts_with("Git repo not found"));
        assert!(
            message(&folder.path().join("none"))
                .await
                .starts_with("Path does not exist")
        );
        let work = clone(folder.path()).await;
        git(&work, &["checkout", "-q", "-b", "local"]).await;
        assert!(message(&work).await.starts_with("No remote branch"));
        git(&work, &["checkout", "-q", "--detach"]).await;
        assert!(message(&work).await.starts_with("Git repo in 'detached HEAD'"));
    }
}
