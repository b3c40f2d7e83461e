use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;

use super::*;
use crate::command::recorded::Recorded;
use crate::command::{CommandError, Commands as _, Output};

/// Disks made of recorded tool answers.
struct FakeDisks {
    tools: Recorded,
    nodes: Vec<&'static str>,
    /// Devices by mount point.
    mounted: Mutex<BTreeMap<PathBuf, String>>,
    /// How often unmounting still fails.
    held: AtomicU32,
    flushed: Mutex<Vec<PathBuf>>,
    /// Neither unmounting nor flushing comes to an end by itself.
    hangs: AtomicBool,
    root: tempfile::TempDir,
}

impl FakeDisks {
    fn new(tools: Recorded, nodes: &[&'static str]) -> Self {
        Self {
            tools,
            nodes: nodes.to_vec(),
            mounted: Mutex::default(),
            held: AtomicU32::new(0),
            flushed: Mutex::default(),
            hangs: AtomicBool::new(false),
            root: tempfile::tempdir().unwrap(),
        }
    }
}

#[async_trait]
impl Disks for FakeDisks {
    async fn tool(&self, program: &'static str, args: &[&str]) -> Result<Output, CommandError> {
        self.tools.run(program, args, std::time::Duration::MAX).await
    }
    fn exists(&self, path: &str) -> bool {
        self.nodes.contains(&path)
    }
    fn block_size(&self, path: &str) -> Option<u64> {
        self.exists(path).then_some(1 << 30)
    }
    fn mounted_at(&self, dir: &Path) -> Option<DeviceNumber> {
        let mounted = self.mounted.lock().unwrap();
        mounted.get(dir).and_then(|device| self.device_number(device))
    }
    fn device_number(&self, path: &str) -> Option<DeviceNumber> {
        // As much of the name as is there: tests have few devices.
        let number = path.bytes().map(u32::from).sum();
        Some((259, number))
    }
    async fn mount(&self, device: &str, dir: &Path) -> Result<(), VolumeError> {
        let before = self
            .mounted
            .lock()
            .unwrap()
            .insert(dir.to_owned(), device.to_owned());
        assert_eq!(before, None, "mounted over what is mounted");
        Ok(())
    }
    async fn unmount(&self, dir: &Path) -> Result<(), VolumeError> {
        if self.hangs.load(Ordering::Relaxed) {
            return Err(VolumeError::Command(CommandError::Timeout {
                program: "umount".to_owned(),
                limit: Duration::from_secs(600),
            }));
        }
        let held = self.held.load(Ordering::Relaxed);
        if held > 0 {
            self.held.store(held - 1, Ordering::Relaxed);
            return Err(VolumeError::Tool {
                tool: "umount",
                stderr: "target is busy".to_owned(),
            });
        }
        self.mounted.lock().unwrap().remove(dir);
        Ok(())
    }
    async fn flush(&self, dir: &Path) -> Result<(), VolumeError> {
        self.flushed.lock().unwrap().push(dir.to_owned());
        match self.hangs.load(Ordering::Relaxed) {
            true => std::future::pending().await,
            false => Ok(()),
        }
    }
    fn mount_root(&self) -> &Path {
        self.root.path()
    }
}

fn aws() -> Volume {
    Volume {
        backend: "aws".into(),
        name: "data".into(),
        volume_id: "vol-0abc".into(),
        init_fs: true,
        device_name: Some("/dev/sdf".into()),
    }
}

const LSBLK: &str = "NAME SERIAL\nnvme0n1 vol0root\n└─nvme0n1p1\nnvme1n1 vol0abc\n";
const BLKID: &str = "blkid -p -o value -s TYPE";

fn nitro() -> Recorded {
    Recorded::default().answer("lsblk -o NAME,SERIAL", 0, LSBLK)
}

#[tokio::test(start_paused = true)]
async fn a_nitro_disk_with_a_filesystem_is_mounted_and_released() {
    let tools = nitro()
        .answer("lsblk -ln -o NAME /dev/nvme1n1", 0, "nvme1n1\nnvme1n1p1\n")
        .answer(&format!("{BLKID} /dev/nvme1n1p1"), 0, "ext4\n");
    let disks = FakeDisks::new(tools, &["/dev/nvme1n1p1"]);
    prepare(&disks, &[aws()]).await.unwrap();
    assert!(disks.mounted_at(&disks.root.path().join("vol-0abc")).is_some());
    assert!(disks.tools.asked().iter().all(|line| !line.starts_with("mkfs")));
    prepare(&disks, &[aws()]).await.unwrap();
    release(&disks, &[aws()]).await.unwrap();
    release(&disks, &[aws()]).await.unwrap();
    assert!(disks.mounted.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_blank_disk_is_formatted_only_when_confirmed_and_ours() {
    let blank = || {
        Recorded::default()
            .answer("lsblk -o NAME,SERIAL", 0, "NAME SERIAL\n")
            .answer("lsblk -ln -o NAME /dev/xvdf", 0, "xvdf\n")
            .answer("mkfs.ext4 -F /dev/xvdf", 0, "")
    };
    let line = format!("{BLKID} /dev/xvdf");
    let disks = FakeDisks::new(blank().answer(&line, 2, ""), &["/dev/xvdf"]);
    prepare(&disks, &[aws()]).await.unwrap();
    let asked = disks.tools.asked();
    assert_eq!(asked.iter().filter(|asked| **asked == line).count(), 4);
    assert_eq!(asked.last().unwrap(), "mkfs.ext4 -F /dev/xvdf");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs_err::metadata(disks.root.path().join("vol-0abc"))
            .unwrap()
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o777);

    // Answers late: not blank after all.
    let late = FakeDisks::new(
        blank().answer(&line, 2, "").answer(&line, 0, "xfs\n"),
        &["/dev/xvdf"],
    );
    prepare(&late, &[aws()]).await.unwrap();
    assert!(!late.tools.asked().iter().any(|line| line.starts_with("mkfs")));

    let external = Volume {
        init_fs: false,
        ..aws()
    };
    let disks = FakeDisks::new(blank().answer(&line, 2, ""), &["/dev/xvdf"]);
    assert!(matches!(
        prepare(&disks, &[external]).await,
        Err(VolumeError::Filesystem { .. })
    ));
    let foreign = FakeDisks::new(blank().answer(&line, 0, "\n"), &["/dev/xvdf"]);
    assert!(matches!(
        prepare(&foreign, &[aws()]).await,
        Err(VolumeError::Filesystem { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn missing_devices_and_unknown_backends_are_errors() {
    let disks = FakeDisks::new(Recorded::default().answer("lsblk -o NAME,SERIAL", 0, ""), &[]);
    assert!(matches!(
        prepare(&disks, &[aws()]).await,
        Err(VolumeError::NoDevice { .. })
    ));
    let other = Volume {
        backend: "azure".into(),
        ..aws()
    };
    assert_eq!(
        prepare(&disks, &[other]).await.unwrap_err().to_string(),
        "unknown backend"
    );
    let escape = Volume {
        volume_id: "../etc".into(),
        ..aws()
    };
    assert!(matches!(
        prepare(&disks, &[escape]).await,
        Err(VolumeError::BadName(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn gcp_prefers_the_first_partition() {
    let volume = Volume {
        backend: "gcp".into(),
        device_name: Some("pd-0".into()),
        ..aws()
    };
    let part = "/dev/disk/by-id/google-pd-0-part1";
    let tools = Recorded::default().answer(&format!("{BLKID} {part}"), 0, "ext4");
    let disks = FakeDisks::new(tools, &[part, "/dev/disk/by-id/google-pd-0"]);
    prepare(&disks, std::slice::from_ref(&volume)).await.unwrap();
    assert!(disks.mounted_at(&disks.root.path().join("vol-0abc")).is_some());
}

#[test]
fn instance_mount_points_are_made_when_missing() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b");
    let mount = InstanceMount {
        instance_path: path.to_string_lossy().into_owned(),
        path: "/data".into(),
        optional: false,
    };
    prepare_instance_mounts(std::slice::from_ref(&mount)).unwrap();
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(&fs_err::metadata(path).unwrap().permissions()) & 0o777
    };
    assert_eq!(mode(&path), 0o777);
    fs_err::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    prepare_instance_mounts(&[mount]).unwrap();
    assert_eq!(mode(&path), 0o700);
}

/// Two projects of one host may have volumes of one name.
#[tokio::test(start_paused = true)]
async fn volumes_of_one_name_do_not_take_each_others_place() {
    let tools = Recorded::default()
        .answer(
            "lsblk -o NAME,SERIAL",
            0,
            "NAME SERIAL\nnvme1n1 vol0abc\nnvme2n1 vol0def\n",
        )
        .answer("lsblk -ln -o NAME /dev/nvme1n1", 0, "nvme1n1\n")
        .answer("lsblk -ln -o NAME /dev/nvme2n1", 0, "nvme2n1\n")
        .answer(&format!("{BLKID} /dev/nvme1n1"), 0, "ext4\n")
        .answer(&format!("{BLKID} /dev/nvme2n1"), 0, "ext4\n");
    let disks = FakeDisks::new(tools, &["/dev/nvme1n1", "/dev/nvme2n1"]);
    let theirs = Volume {
        volume_id: "vol-0def".into(),
        ..aws()
    };
    prepare(&disks, &[aws()]).await.unwrap();
    prepare(&disks, std::slice::from_ref(&theirs)).await.unwrap();
    release(&disks, &[aws()]).await.unwrap();
    let left = disks.mounted.lock().unwrap().clone();
    let place = disks.root.path().join("vol-0def");
    assert_eq!(left, BTreeMap::from([(place, "/dev/nvme2n1".to_owned())]));
}

/// A volume that was taken away by force, and attached again as another device.
#[tokio::test(start_paused = true)]
async fn what_is_mounted_of_a_device_that_is_gone_makes_way() {
    let tools = nitro()
        .answer("lsblk -ln -o NAME /dev/nvme1n1", 0, "nvme1n1\n")
        .answer(&format!("{BLKID} /dev/nvme1n1"), 0, "ext4\n");
    let disks = FakeDisks::new(tools, &["/dev/nvme1n1"]);
    let place = disks.root.path().join("vol-0abc");
    disks.mount("/dev/nvme7n1", &place).await.unwrap();
    prepare(&disks, &[aws()]).await.unwrap();
    let mounted = disks.mounted.lock().unwrap().clone();
    assert_eq!(mounted, BTreeMap::from([(place, "/dev/nvme1n1".to_owned())]));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_held_for_a_moment_is_waited_for_and_one_that_stays_is_flushed() {
    let disks = FakeDisks::new(Recorded::default(), &[]);
    let place = disks.root.path().join("vol-0abc");
    disks.mount("/dev/nvme1n1", &place).await.unwrap();
    disks.held.store(UNMOUNT_TRIES, Ordering::Relaxed);
    let error = release(&disks, &[aws()]).await.unwrap_err();
    assert!(error.to_string().contains("target is busy"), "{error}");
    assert_eq!(*disks.flushed.lock().unwrap(), [place]);
    disks.held.store(UNMOUNT_TRIES - 1, Ordering::Relaxed);
    release(&disks, &[aws()]).await.unwrap();
    assert!(disks.mounted.lock().unwrap().is_empty());
    assert_eq!(disks.flushed.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_older_agent_mounted_by_name_is_unmounted() {
    let disks = FakeDisks::new(Recorded::default(), &[]);
    let place = disks.root.path().join("data");
    disks.mount("/dev/nvme1n1", &place).await.unwrap();
    release(&disks, &[aws()]).await.unwrap();
    assert!(disks.mounted.lock().unwrap().is_empty());
}

/// A network disk whose other end is away: the task ends all the same, and says what may be missing.
#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_answer_holds_up_the_end_of_a_task_for_a_bounded_time() {
    let disks = FakeDisks::new(Recorded::default(), &[]);
    let other = Volume {
        name: "other".into(),
        volume_id: "vol-0def".into(),
        ..aws()
    };
    for (device, place) in [("/dev/nvme1n1", "vol-0abc"), ("/dev/nvme2n1", "vol-0def")] {
        let place = disks.root.path().join(place);
        disks.mount(device, &place).await.unwrap();
    }
    disks.hangs.store(true, Ordering::Relaxed);
    let begun = tokio::time::Instant::now();
    let error = release(&disks, &[aws(), other]).await.unwrap_err();
    assert!(error.to_string().contains("did not reach its disk"), "{error}");
    assert_eq!(
        begun.elapsed(),
        FLUSH_LIMIT,
        "one waits for no other, and a try that had no end is not made again"
    );
}

/// The name of an older agent's mount point comes from the server, as ids do.
#[tokio::test(start_paused = true)]
async fn nothing_is_unmounted_but_what_is_mounted_below_the_root() {
    let disks = FakeDisks::new(Recorded::default(), &[]);
    let elsewhere = disks.root.path().join("../elsewhere");
    disks.mount("/dev/nvme1n1", &elsewhere).await.unwrap();
    let volume = Volume {
        name: "../elsewhere".into(),
        ..aws()
    };
    release(&disks, &[volume]).await.unwrap();
    assert!(disks.mounted.lock().unwrap().contains_key(&elsewhere));
}
