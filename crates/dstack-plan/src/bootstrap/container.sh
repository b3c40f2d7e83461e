# Beside another agent, which has the usual ports and folders, whoever starts the script says which are free. Whoever brings the agent
# finds the folder by the port.
[ -z "${DSTACK_BOOTSTRAP_SSH_PORT:-}" ] || state=$state-$DSTACK_BOOTSTRAP_SSH_PORT
ssh_port=${DSTACK_BOOTSTRAP_SSH_PORT:-$ssh_port}
http_port=${DSTACK_BOOTSTRAP_HTTP_PORT:-$http_port}
runner_dir=${DSTACK_BOOTSTRAP_RUNNER_DIR:-}
unset DSTACK_BOOTSTRAP_SSH_PORT DSTACK_BOOTSTRAP_HTTP_PORT DSTACK_BOOTSTRAP_RUNNER_DIR
# In a shell of its own: what the image sets for its programs may keep those of the system from running, and the job has it back.
bring_up() (
  unset LD_LIBRARY_PATH LD_PRELOAD
  PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  export PATH
  mkdir -p "$state" && chmod 755 "$state" || give_up 1 "$state cannot be made"
  rm -f "$state/taken"
  find_sshd || install_sshd
  find_sshd || give_up 11 "there is no sshd in the image, and openssh-server cannot be installed: use an image that has it"
  make_host_key
  printf '%s\n' "$keys" > "$state/authorized_keys" || give_up 1 "$state/authorized_keys cannot be written"
  allow_root
  mkdir -p /run/sshd /var/empty 2>/dev/null
  configuration > "$state/sshd_config" || give_up 1 "$state/sshd_config cannot be written"
  start_sshd || give_up 1 "sshd does not start"
)
say() { printf 'dstack: %s\n' "$1"; }
give_up() { say "$2"; exit "$1"; }
have() { command -v "$1" >/dev/null 2>&1; }
# It wants to be called by its whole path.
find_sshd() {
  for sshd in "$(command -v sshd 2>/dev/null)" /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd; do
    [ -x "$sshd" ] && return 0
  done
  return 1
}
install_sshd() {
  say "openssh-server is being installed"
  if have apt-get; then
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-server
  elif have dnf; then dnf install -y openssh-server
  elif have microdnf; then microdnf install -y openssh-server
  elif have yum; then yum install -y openssh-server
  elif have apk; then apk add --no-cache openssh-server openssh-keygen
  elif have zypper; then zypper --non-interactive install openssh
  elif have pacman; then pacman -Sy --noconfirm openssh
  else
    system=$(. /etc/os-release 2>/dev/null; printf '%s' "${PRETTY_NAME:-${NAME:-its system}}")
    give_up 11 "there is no sshd in the image, and no package manager for $system that could install it: use an image that has openssh-server"
  fi
}
make_host_key() {
  [ -s "$state/host_key" ] && return 0
  have ssh-keygen || give_up 11 "there is no ssh-keygen in the image: use an image that has openssh-server with its tools"
  new=$state/host_key.new
  rm -f "$new" "$new.pub"
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$new" && mv -f "$new.pub" "$state/host_key.pub" && mv -f "$new" "$state/host_key" ||
    give_up 1 "the host key cannot be made in $state"
}
# Without PAM, which many images have no configuration for, sshd refuses who is locked, also with a key.
allow_root() {
  grep -q '^root:!' /etc/shadow 2>/dev/null || return 0
  sed -i 's/^root:![^:]*:/root:*:/' /etc/shadow || say "root is locked in /etc/shadow, and may not be let in"
}
configuration() {
  cat <<CONFIGURATION
Port $ssh_port
HostKey $state/host_key
PidFile $state/sshd.pid
AuthorizedKeysFile $state/authorized_keys
PubkeyAuthentication yes
PasswordAuthentication no
ChallengeResponseAuthentication no
PermitRootLogin without-password
UsePAM no
StrictModes no
AllowTcpForwarding yes
MaxSessions 100
PrintMotd no
CONFIGURATION
}
sshd_runs() { kill -0 "$(cat "$state/sshd.pid" 2>/dev/null || echo none)" 2>/dev/null; }
start_sshd() {
  # Of a container that was started again, where the number may be another's.
  rm -f "$state/sshd.pid"
  "$sshd" -f "$state/sshd_config" -E "$state/sshd.log" || { cat "$state/sshd.log"; return 1; }
}
end_sshd() {
  kill "$(cat "$state/sshd.pid" 2>/dev/null || echo none)" 2>/dev/null
  tries=0
  while sshd_runs && [ "$tries" -lt 20 ]; do
    tries=$((tries + 1))
    sleep 1
  done
}

umask 022
bring_up || exit $?
say "waiting for the agent on port $ssh_port"
waited=0
until [ -f "$state/start" ]; do
  [ "$waited" -lt "$patience" ] || give_up 12 "nobody has brought the agent within $patience s"
  waited=$((waited + 1))
  sleep 1
done
agent=$(cat "$state/start")
DSTACK_RUNNER_TOKEN=$(cat "$state/token")
export DSTACK_RUNNER_TOKEN
end_sshd
rm -f "$state/start" "$state/token" "$state/sshd.pid"
: > "$state/taken"
set --
while IFS= read -r key; do
  [ -z "$key" ] || set -- "$@" --ssh-authorized-key "$key"
done < "$state/authorized_keys"
if [ -n "$runner_dir" ]; then
  set -- --temp-dir "$runner_dir/tmp" --state-dir "$runner_dir/state" "$@"
else
  set -- --temp-dir /tmp/runner "$@"
fi
exec "$agent" runner --log-level info start --http-address localhost --http-port "$http_port" \
  --ssh-port "$ssh_port" --ssh-host-key "$state/host_key" "$@"
