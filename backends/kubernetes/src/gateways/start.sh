# The program of a gateway's container: an SSH server, for a user who may become root. What is brought there lies in volumes, and comes
# back by itself with a container that is started again. It is for any POSIX shell, and runs as root.
say() { printf 'dstack: %s\n' "$1"; }
give_up() { say "$2"; exit "$1"; }
have() { command -v "$1" >/dev/null 2>&1; }
# Of a container that was started again: it needs nothing of the image, and so waits for nothing.
start_gateway() {
  for loop in "$home"/loop-*.sh; do
    [ -e "$loop" ] || continue
    say "the gateway is started again"
    sh "$loop" </dev/null >/dev/null 2>&1 &
  done
}
# It wants to be called by its whole path.
find_sshd() {
  for sshd in "$(command -v sshd 2>/dev/null)" /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd; do
    [ -x "$sshd" ] && return 0
  done
  return 1
}
# Of certificate authorities: the gateway asks one for its own certificates.
have_certificates() {
  for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    [ -s "$file" ] && return 0
  done
  return 1
}
is_complete() { find_sshd && have ssh-keygen && have sudo && have_certificates; }
install_missing() {
  say "openssh-server, sudo and ca-certificates are being installed"
  if have apt-get; then
    # Packages start their services where nobody says no, and the port would be taken.
    [ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d; }
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-server sudo ca-certificates
  elif have dnf; then dnf install -y openssh-server sudo ca-certificates shadow-utils
  elif have microdnf; then microdnf install -y openssh-server sudo ca-certificates shadow-utils
  elif have yum; then yum install -y openssh-server sudo ca-certificates shadow-utils
  elif have apk; then apk add --no-cache openssh-server openssh-keygen sudo ca-certificates
  elif have zypper; then zypper --non-interactive install openssh sudo ca-certificates-mozilla shadow
  elif have pacman; then pacman -Sy --noconfirm openssh sudo ca-certificates
  else say "the image has no package manager that is known here"
  fi
}
make_host_key() {
  [ -s "$ssh/host_key" ] && return 0
  new=$ssh/host_key.new
  rm -f "$new" "$new.pub"
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$new" && mv -f "$new" "$ssh/host_key" || give_up 1 "the host key cannot be made in $ssh"
}
make_user() {
  if ! id -u "$user" >/dev/null 2>&1; then
    if have useradd; then useradd --create-home --shell /bin/sh "$user"; else adduser -D -s /bin/sh "$user"; fi ||
      give_up 1 "the user $user cannot be made"
  fi
  # Without PAM, sshd refuses who is locked, also with a key.
  sed -i "s/^$user:![^:]*:/$user:*:/" /etc/shadow || say "$user is locked in /etc/shadow, and may not be let in"
  mkdir -p /etc/sudoers.d && printf '%s ALL=(ALL) NOPASSWD: ALL\n' "$user" > /etc/sudoers.d/dstack-gateway &&
    chmod 440 /etc/sudoers.d/dstack-gateway || give_up 1 "$user cannot be made root"
}
configuration() {
  cat <<CONFIGURATION
Port 22
HostKey $ssh/host_key
PidFile none
AuthorizedKeysFile $ssh/authorized_keys
PubkeyAuthentication yes
PasswordAuthentication no
ChallengeResponseAuthentication no
PermitRootLogin no
AllowUsers $user
UsePAM no
StrictModes no
AllowTcpForwarding yes
MaxSessions 100
PrintMotd no
CONFIGURATION
}
# The file may be of a container before this one, and the id another's.
is_gateway() { case "$(readlink "/proc/$1/exe" 2>/dev/null)" in "$home"/gateway-*) return 0 ;; esac; return 1; }
# Requests under way are answered before, as far as the cluster waits for that.
end() {
  for file in "$home"/gateway-*.pid; do
    id=$(cat "$file" 2>/dev/null) && is_gateway "$id" && kill "$id" 2>/dev/null || continue
    while is_gateway "$id"; do sleep 1; done
  done
  kill "$server"
  exit 0
}

umask 022
unset LD_LIBRARY_PATH LD_PRELOAD
PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export PATH
start_gateway
is_complete || install_missing
find_sshd || give_up 11 "there is no sshd in the image, and openssh-server cannot be installed: name an image that has it as gateway_image"
have ssh-keygen || give_up 11 "there is no ssh-keygen in the image: name one that has openssh-server with its tools as gateway_image"
have sudo || give_up 11 "there is no sudo in the image, and it cannot be installed: name an image that has it as gateway_image"
have_certificates || say "there are no certificates of authorities (ca-certificates): the gateway will get none"
mkdir -p "$ssh" && chmod 755 "$ssh" || give_up 1 "$ssh cannot be made"
make_host_key
make_user
printf '%s\n' "$keys" > "$ssh/authorized_keys" || give_up 1 "$ssh/authorized_keys cannot be written"
configuration > "$ssh/sshd_config" || give_up 1 "$ssh/sshd_config cannot be written"
mkdir -p /run/sshd /var/empty 2>/dev/null
"$sshd" -D -e -f "$ssh/sshd_config" &
server=$!
trap end TERM INT
say "waiting for the gateway on port 22"
wait "$server"
give_up 1 "sshd has ended"
