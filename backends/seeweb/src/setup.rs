//! What happens at the first start of a machine. Its image has the drivers, and neither Docker nor the container toolkit; and when
//! all is done, the vendor starts it once more.

/// Services that are installed do not start before the second start: a host is taken as soon as Docker answers, and its jobs
/// would not survive that. Where there is no second start, Docker begins five minutes later.
const INSTALL: &str = r"export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
packages=nvidia-container-toolkit
command -v dockerd || packages='docker.io nvidia-container-toolkit'
for i in $(seq 10); do
  apt-get -o DPkg::Lock::Timeout=300 update &&
    apt-get -o DPkg::Lock::Timeout=300 install --yes $packages && break
  sleep 10
done
nvidia-ctk runtime configure --runtime=docker
rm -f /usr/sbin/policy-rc.d
systemctl enable docker.service
systemd-run --on-active=300 systemctl start docker.service
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
    script.push_str(INSTALL);
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
}
