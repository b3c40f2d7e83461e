//! Scripts for `sbatch` (<https://slurm.schedmd.com/sbatch.html>) that start containers with Pyxis
//! (<https://github.com/NVIDIA/pyxis>).

use dstack_model::instances::Resources;
use dstack_units::quoting::{shell_line, shell_word};

use crate::image::enroot_uri;

/// Longest script that Slurm takes, unless it is configured otherwise (`max_script_size` of `SchedulerParameters`).
const MAX_SCRIPT_BYTES: usize = 4 * 1024 * 1024;

/// Before everything else in a container. Images whose root folder is not for all get an SSH server that refuses keys. In the user
/// namespace of enroot there is root only: the SSH server cannot become the account that it otherwise is for strangers.
const PREPARE: &str = "chmod 0755 / 2>/dev/null || :\n\
    accounts=$(grep -v '^sshd:' /etc/passwd || :)\n\
    printf '%s\\n' \"$accounts\" 'sshd:x:0:0:sshd:/run/sshd:/usr/sbin/nologin' >/etc/passwd || :\n";

/// A job of Slurm.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// In each of these it may run.
    pub(crate) partitions: &'a [String],
    /// What each node is asked for.
    pub(crate) share: &'a Resources,
    /// Image of all containers, as Docker names it.
    pub(crate) image: &'a str,
    /// What runs in the containers, one script for each node.
    pub(crate) scripts: Vec<&'a str>,
}

impl Batch<'_> {
    /// The text for `sbatch`.
    ///
    /// # Errors
    /// It is longer than what Slurm takes; the text is for users.
    pub(crate) fn script(&self) -> Result<String, String> {
        let cpus = self.share.cpus;
        let gpus = self.share.gpus.len();
        let mut lines = vec![
            "#!/bin/sh".to_owned(),
            format!("#SBATCH --job-name={}", self.name),
            "#SBATCH --output=/dev/null".to_owned(),
            "#SBATCH --no-requeue".to_owned(),
            format!("#SBATCH --partition={}", self.partitions.join(",")),
            format!("#SBATCH --nodes={}", self.scripts.len()),
            "#SBATCH --ntasks-per-node=1".to_owned(),
            format!("#SBATCH --cpus-per-task={cpus}"),
            format!("#SBATCH --mem={}M", self.share.memory_mib),
        ];
        if gpus > 0 {
            lines.push(format!("#SBATCH --gres=gpu:{gpus}"));
        }
        lines.push("set -eu".to_owned());
        if gpus == 0 {
            // Images of NVIDIA say `all`, and their hook fails where there are none.
            lines.push("export NVIDIA_VISIBLE_DEVICES=void".to_owned());
        }
        lines.push(self.step(cpus, gpus));
        let text = lines.join("\n") + "\n";
        match text.len() > MAX_SCRIPT_BYTES {
            true => Err(format!(
                "the script of the job has {} bytes, and Slurm takes {MAX_SCRIPT_BYTES}",
                text.len()
            )),
            false => Ok(text),
        }
    }

    fn step(&self, cpus: i64, gpus: usize) -> String {
        let mut words = vec![
            "srun".to_owned(),
            format!("--cpus-per-task={cpus}"),
            format!("--container-image={}", enroot_uri(self.image)),
            format!("--container-name={}", self.name),
            "--container-remap-root".to_owned(),
            "--container-writable".to_owned(),
            "--no-container-mount-home".to_owned(),
        ];
        if gpus == 0 {
            // Otherwise the image's own value would count.
            words.push("--container-env=NVIDIA_VISIBLE_DEVICES".to_owned());
        }
        words.extend(["sh".to_owned(), "-c".to_owned(), self.of_containers()]);
        shell_line(words)
    }

    /// What all containers run: where the nodes differ, each takes its own.
    fn of_containers(&self) -> String {
        let mut different = self
            .scripts
            .windows(2)
            .filter(|pair| matches!(pair, [a, b] if a != b));
        if different.next().is_none() {
            return format!("{PREPARE}{}", self.scripts.first().unwrap_or(&""));
        }
        let of_node =
            |(node, script): (usize, &&str)| format!("{node}) exec sh -c {} ;;\n", shell_word(script));
        let cases: String = self.scripts.iter().enumerate().map(of_node).collect();
        format!("{PREPARE}case $SLURM_NODEID in\n{cases}esac\n")
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use dstack_model::instances::{Disk, Gpu};

    use super::*;

    fn share(gpus: usize) -> Resources {
        let gpu = Gpu {
            name: "A100".to_owned(),
            memory_mib: 81_920,
            vendor: None,
        };
        Resources {
            cpus: 4,
            memory_mib: 8192,
            gpus: vec![gpu; gpus],
            spot: false,
            disk: Disk { size_mib: 0 },
            cpu_arch: None,
            description: String::new(),
        }
    }

    fn script(share: &Resources, scripts: Vec<&str>) -> String {
        let partitions = ["a".to_owned(), "b".to_owned()];
        let batch = Batch {
            name: "dstack-x",
            partitions: &partitions,
            share,
            image: "nvcr.io/team/image:1",
            scripts,
        };
        batch.script().unwrap()
    }

    #[test]
    fn a_script_asks_for_the_share_and_starts_a_container() {
        let text = script(&share(2), vec!["true"]);
        let head = "#!/bin/sh\n#SBATCH --job-name=dstack-x\n#SBATCH --output=/dev/null\n#SBATCH --no-requeue\n\
            #SBATCH --partition=a,b\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=4\n\
            #SBATCH --mem=8192M\n#SBATCH --gres=gpu:2\nset -eu\n\
            srun '--cpus-per-task=4' '--container-image=nvcr.io#team/image:1' '--container-name=dstack-x' --container-remap-root \
            --container-writable --no-container-mount-home sh -c '";
        assert!(text.starts_with(head), "{text}");
        let text = script(&share(0), vec!["true"]);
        assert!(!text.contains("--gres"), "{text}");
        assert!(text.contains("export NVIDIA_VISIBLE_DEVICES=void\n"), "{text}");
        assert!(
            text.contains(" '--container-env=NVIDIA_VISIBLE_DEVICES' sh -c "),
            "{text}"
        );
    }

    /// Runs the script with an `srun` that has only the command run, without what changes this machine.
    fn run(text: &str, node: &str) -> String {
        let srun = "srun() { while [ \"$1\" != sh ]; do shift; done; \"$@\"; }\n";
        let harmless = text
            .replace("/etc/passwd", "/dev/null")
            .replace("chmod", ": chmod");
        let output = Command::new("sh")
            .args(["-c", &format!("{srun}{harmless}")])
            .env("SLURM_NODEID", node)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn workloads_run_as_they_are_whatever_is_in_them() {
        let odd = "printf '%s|' \"it's\" '$HOME' '\\' `echo x`; cat <<'EOF'\n\"$1\" 'EOF\nEOF\n";
        assert_eq!(
            run(&script(&share(0), vec![odd]), "0"),
            "it's|$HOME|\\|x|\"$1\" 'EOF\n"
        );
        let each = vec![odd, "echo \"it's the second\""];
        assert_eq!(run(&script(&share(0), each.clone()), "1"), "it's the second\n");
        assert!(run(&script(&share(0), each), "0").starts_with("it's|"));
        let same = script(&share(0), vec!["true", "true"]);
        assert!(
            same.contains("--nodes=2") && !same.contains("SLURM_NODEID"),
            "{same}"
        );
    }

    #[test]
    fn a_script_that_slurm_would_not_take_is_refused() {
        let long = "x".repeat(MAX_SCRIPT_BYTES);
        let share = share(0);
        let batch = Batch {
            name: "n",
            partitions: &[],
            share: &share,
            image: "i",
            scripts: vec![&long],
        };
        assert!(batch.script().unwrap_err().contains("Slurm takes 4194304"));
    }
}
