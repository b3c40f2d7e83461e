//! The disk of the server is full while a job runs: it says so, loses nothing, and goes on once there is room.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use dstack_tests::parts::Part;
use dstack_tests::runs::{TEST_TIMEOUT, attach, submit};
use dstack_tests::server::{Setup, eventually};
use dstack_tests::{need, skip};
use serde_json::json;
use tempfile::TempDir;

/// A small disk. It goes with the test.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn mount() -> Part<Disk> {
        let folder = TempDir::with_prefix("dstack-disk-").map_err(|error| error.to_string())?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        match mounted {
            Ok(status) if status.success() => Ok(Disk { folder }),
            _ => Err("a file system cannot be mounted here (needs root and CAP_SYS_ADMIN)".into()),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Takes every byte that is left, those that files had reserved as well.
    fn fill(&self) -> Result<()> {
        use std::io::Write;
        let mut file = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.ballast())?;
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(fs_err::remove_file(self.ballast())?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.path()).status().ok(); // the machine is a test's
    }
}

/// A server whose `folder` (`data` of the database, `projects` of the output) lies on the disk.
fn server_with(disk: &Disk, folder: &str) -> Part<(Setup, TempDir)> {
    let dir = TempDir::with_prefix("dstack-test-").map_err(|error| error.to_string())?;
    std::os::unix::fs::symlink(disk.path(), dir.path().join(folder)).map_err(|error| error.to_string())?;
    let setup = Setup::local()?.variable("DSTACK_SERVER_DIR", dir.path().display().to_string());
    Ok((setup, dir))
}

const COUNTING: &str = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; sleep 0.1; done";

fn counted() -> String {
    (1..=100).map(|i| format!("line {i}\n")).collect()
}

#[test]
fn output_waits_at_the_agent_until_there_is_room() {
    let disk = need!(Disk::mount());
    let (setup, _dir) = need!(server_with(&disk, "projects"));
    let server = setup.start().unwrap();
    let run = submit(&server, "counting", &[COUNTING], &json!({})).unwrap();
    run.wait_for_log("line 5\n").unwrap();
    disk.fill().unwrap();
    eventually("the log says why, and what to do", TEST_TIMEOUT, || {
        let said = server.output();
        Ok((said.contains("the disk is full") && said.contains("free space")).then_some(()))
    })
    .unwrap();
    // The rest of the server is not concerned.
    server.get("/api/runs/list", &json!({})).unwrap();
    disk.free().unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), counted());
}

#[test]
fn a_database_without_room_refuses_and_goes_on_later() {
    if dstack_tests::parts::on_postgres() {
        skip!("the disk of SQLite's database");
    }
    let disk = need!(Disk::mount());
    let (setup, _dir) = need!(server_with(&disk, "data"));
    let mut server = setup.start().unwrap();
    let run = submit(&server, "counting", &[COUNTING], &json!({})).unwrap();
    run.wait_for_log("line 5\n").unwrap();
    disk.fill().unwrap();
    let configuration = json!({"type": "task", "name": "refused", "commands": ["echo hello"]});
    let spec = json!({"run_name": "refused", "configuration": configuration, "profile": {"name": "default"}});
    let plan = json!({"plan": {"run_spec": spec}, "force": false});
    let refused = eventually("a submission is refused", TEST_TIMEOUT, || {
        let answer = server.call("/api/project/main/runs/apply", &plan)?;
        // What still fitted into the space that the database had reserved was stored.
        if answer.status == 200 {
            server
                .get(
                    "/api/project/main/runs/stop",
                    &json!({"runs_names": ["refused"], "abort": true}),
                )
                .ok();
            server
                .get(
                    "/api/project/main/runs/delete",
                    &json!({"runs_names": ["refused"]}),
                )
                .ok();
            return Ok(None);
        }
        Ok((answer.status == 503).then_some(answer))
    })
    .unwrap();
    assert!(
        refused.text().contains("disk") && refused.text().contains("free space"),
        "{}",
        refused.text()
    );
    // Reading goes on.
    server.get("/api/runs/list", &json!({})).unwrap();

    // A start says what is wrong, too.
    server.kill().unwrap();
    if let Err(error) = server.start() {
        let said = format!("{error:#}");
        assert!(said.contains("disk is full") && said.contains("hint: "), "{said}");
        disk.free().unwrap();
        server.start().unwrap();
    } else {
        disk.free().unwrap();
    }
    let run = attach(&server, "counting");
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), counted());
    let after = submit(&server, "after", &["echo hello"], &json!({})).unwrap();
    assert_eq!(after.wait_until_finished().unwrap(), "done");
}
