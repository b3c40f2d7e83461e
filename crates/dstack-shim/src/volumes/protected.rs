//! Paths of the host that no container gets.

use std::io;
use std::path::{Component, Path, PathBuf};

use dstack_agent_api::shim::TaskConfig;

/// Refuses a task that would get at the paths that are protected from it, whatever links lead there.
///
/// Between this look and the engine's mount somebody who may write beside a mounted directory could put a link in its place. The
/// server's machine is offered to people who are trusted with it; this keeps mistakes and plain attempts out.
///
/// # Errors
/// A mount is, lies in, or contains one of them; the task is privileged; or the path of a mount cannot be followed.
pub fn check_protected(task: &TaskConfig) -> io::Result<()> {
    if task.protected_paths.is_empty() {
        return Ok(());
    }
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    if task.privileged {
        return refused("privileged tasks are not run on the server's own machine".to_owned());
    }
    if task.instance_mounts.is_empty() {
        return Ok(());
    }
    let mut protected: Vec<PathBuf> = task.protected_paths.iter().map(PathBuf::from).collect();
    // One that this user cannot follow (in a closed directory of somebody else) counts by its spelling alone.
    let followed = task.protected_paths.iter().map(|path| real_path(Path::new(path)));
    protected.extend(followed.filter_map(Result::ok).collect::<Vec<_>>());
    for mount in &task.instance_mounts {
        let real = real_path(Path::new(&mount.instance_path))?;
        if protected
            .iter()
            .any(|path| real.starts_with(path) || path.starts_with(&real))
        {
            return refused(format!(
                "{} is not mounted: the server's files, keys or container engine are there",
                mount.instance_path
            ));
        }
    }
    Ok(())
}

/// Where a path leads once all links are followed. What is not there yet is made below the part that is.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs_err::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    // A link to nowhere: whoever makes what it names would mount it.
    if fs_err::symlink_metadata(path).is_ok() {
        let target = fs_err::read_link(path)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        return real_path(&parent.join(target));
    }
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => Ok(real_path(parent)?.join(name)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} leads through a directory that is not there", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use dstack_agent_api::shim::InstanceMount;

    use super::*;

    fn task(protected: &Path, mounted: &Path) -> TaskConfig {
        TaskConfig {
            protected_paths: vec![protected.display().to_string()],
            instance_mounts: vec![InstanceMount {
                instance_path: mounted.display().to_string(),
                path: "/mounted".to_owned(),
                optional: false,
            }],
            ..TaskConfig::default()
        }
    }

    #[test]
    fn links_do_not_lead_to_what_is_protected() {
        let dir = tempfile::tempdir().unwrap();
        let (server, open) = (dir.path().join("server"), dir.path().join("open"));
        fs_err::create_dir_all(server.join("data")).unwrap();
        fs_err::create_dir_all(&open).unwrap();
        for (name, target) in [
            ("to-it", server.clone()),
            ("below-it", server.join("data")),
            ("above-it", dir.path().to_owned()),
            ("not-yet", server.join("later")),
            ("relative", PathBuf::from("../server")),
        ] {
            let link = open.join(name);
            symlink(target, &link).unwrap();
            let error = check_protected(&task(&server, &link)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
            let beyond = check_protected(&task(&server, &link.join("new/dir")));
            // What lies beside the protected directory is free.
            assert_eq!(beyond.is_ok(), name == "above-it", "{name}: {beyond:?}");
        }
        check_protected(&task(&server, &open)).unwrap();
        check_protected(&task(&server, &open.join("new/dir"))).unwrap();
    }

    #[test]
    fn a_protected_path_may_itself_be_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        fs_err::create_dir(&real).unwrap();
        symlink(&real, dir.path().join("link")).unwrap();
        let task = task(&dir.path().join("link"), &real.join("data"));
        check_protected(&task).unwrap_err();
    }

    #[test]
    fn a_protected_path_that_cannot_be_followed_counts_by_its_spelling() {
        let dir = tempfile::tempdir().unwrap();
        let (file, open) = (dir.path().join("file"), dir.path().join("open"));
        fs_err::write(&file, "").unwrap();
        // Not "not found", but "not a directory": as for a closed one, nobody can say where it leads.
        let lost = file.join("docker.sock");
        assert_ne!(real_path(&lost).unwrap_err().kind(), io::ErrorKind::NotFound);
        check_protected(&task(&lost, &open)).unwrap();
        let error = check_protected(&task(&lost, dir.path())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let mut without_mounts = task(&lost, &open);
        without_mounts.instance_mounts.clear();
        check_protected(&without_mounts).unwrap();
    }

    #[test]
    fn without_protected_paths_nothing_is_refused() {
        let mut task = task(Path::new("/run"), Path::new("/"));
        task.privileged = true;
        check_protected(&task).unwrap_err();
        task.privileged = false;
        check_protected(&task).unwrap_err();
        task.protected_paths.clear();
        task.privileged = true;
        check_protected(&task).unwrap();
    }
}
