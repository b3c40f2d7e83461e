//! What happens at the first start of a machine. Its image has the drivers, and neither Docker nor the container toolkit; and when
//! all is done, the vendor starts it once more.

use dstack_backend::KEEP_GPUS;

/// A host is taken as soon as Docker answers, and its jobs would not survive the second start: Docker does not start before that, nor
/// before the container toolkit is there. Where there is no second start, it begins five minutes later.
const HOLD_DOCKER: &str = r"export DEBIAN_FRONTEND=noninteractive
systemctl mask --now docker.socket docker.service
packages=nvidia-container-toolkit
command -v dockerd || packages='docker.io nvidia-container-toolkit'
for i in $(seq 10); do
  apt-get -o DPkg::Lock::Timeout=300 update &&
    apt-get -o DPkg::Lock::Timeout=300 install --yes $packages &&
    command -v nvidia-container-runtime-hook && break
  sleep 10
done
nvidia-ctk runtime configure --runtime=docker
";

/// With GPUs only.
const START_DOCKER: &str = r"if command -v nvidia-container-runtime-hook; then
  systemctl unmask docker.socket docker.service
  systemctl enable docker.socket docker.service
  systemd-run --on-active=300 systemctl start docker.service
fi
";

/// The script for a machine into which these keys may log in as root.
pub(crate) fn script(authorized_keys: &[String]) -> String {
    let mut script = "#!/bin/bash\ninstall -d -m 0700 /root/.ssh\n\
        cat >> /root/.ssh/authorized_keys <<'END_OF_KEYS'\n"
        .to_owned();
    for key in authorized_keys {
        // One line each, whatever stands in it.
        script.extend(key.split(['\n', '\r']).take(1));
        script.push('\n');
    }
    script.push_str("END_OF_KEYS\nchmod 0600 /root/.ssh/authorized_keys\n");
    script.push_str(HOLD_DOCKER);
    script.push_str("python3 - <<'END_OF_PYTHON'");
    script.push_str(KEEP_GPUS);
    script.push_str("END_OF_PYTHON\n");
    script.push_str(START_DOCKER);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines() {
        let keys = ["ssh-ed25519 AAAA a".to_owned(), "ssh-rsa BBBB\nreboot".to_owned()];
        let script = script(&keys);
        assert!(script.starts_with("#!/bin/bash\n"), "{script}");
        let lines = "<<'END_OF_KEYS'\nssh-ed25519 AAAA a\nssh-rsa BBBB\nEND_OF_KEYS\n";
        assert!(script.contains(lines), "{script}");
    }

    #[test]
    fn docker_is_held_until_containers_keep_their_gpus() {
        let script = script(&[]);
        let at = |text: &str| script.find(text).unwrap();
        let steps = [
            "systemctl mask --now",
            "apt-get",
            "nvidia-ctk",
            "native.cgroupdriver",
            "systemctl unmask",
        ];
        assert!(steps.map(at).is_sorted(), "{script}");
    }
}
