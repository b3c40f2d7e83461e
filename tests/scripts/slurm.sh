#!/bin/sh
# A Slurm cluster for tests: slurmctld, two slurmd and munged of Debian's packages, and an sshd as its login node, all on loopback
# unless another address is given for the login node.
#
#   slurm.sh start DIR [ADDRESS]    starts it; prints lines NAME=VALUE: port of the login node, which listens on ADDRESS
#   slurm.sh run DIR COMMAND...    runs a command as on the login node
#   slurm.sh stop DIR     ends it with all jobs
#
# The login node has user root with DIR/key, whose home there is DIR/home. Partition `cpu` has both nodes, `gpu` the second one, with
# two GPUs. Containers are left out: an `srun` of the login node drops the options of Pyxis (it notes them in DIR/srun.log), and the
# command runs on this machine, with accounts (/etc/passwd) of its own.
# Needs root, the packages slurm-wlm, munge and openssh-server. Exit 3 and a line on stderr: it cannot be had here, with the reason.
set -eu

usage() { echo "usage: slurm.sh start|run|stop DIR ..." >&2; exit 2; }
skip() { echo "no Slurm: $*" >&2; exit 3; }
fail() { echo "Slurm: $*" >&2; exit 1; }

[ $# -ge 2 ] || usage
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
shift 2
PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF="$dir/slurm.conf"
# Below the ports that the system gives to clients; four for each DIR.
base=$((20000 + $(printf %s "$dir" | cksum | cut -d ' ' -f 1) % 2500 * 4))

needed() {
    [ "$(id -u)" = 0 ] || skip "not root"
    for program in slurmctld slurmd sbatch munged sshd ssh-keygen unshare; do
        command -v "$program" >/dev/null 2>&1 || skip "$program is not installed (packages slurm-wlm, munge, openssh-server)"
    done
    for port in 0 1 2 3; do
        if [ -n "$(ss -Hltn "sport = :$((base + port))" 2>/dev/null)" ]; then skip "port $((base + port)) is taken"; fi
    done
}

files() {
    mkdir -p "$dir/bin" "$dir/state" "$dir/home/.ssh" "$dir/spool1" "$dir/spool2" /run/sshd
    chmod 700 "$dir" "$dir/home/.ssh"
    : >"$dir/srun.log"
    : >"$dir/gpu0"
    : >"$dir/gpu1"
    cat >"$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=node1 NodeAddr=127.0.0.1 NodeHostname=localhost Port=$((base + 1)) CPUs=16 RealMemory=65536
NodeName=node2 NodeAddr=127.0.0.1 NodeHostname=localhost Port=$((base + 2)) CPUs=16 RealMemory=65536 Gres=gpu:a100:2
PartitionName=cpu Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=node2 MaxTime=INFINITE State=UP
CONF
    echo "NodeName=node2 Name=gpu Type=a100 File=$dir/gpu[0-1]" >"$dir/gres.conf"
    cat >"$dir/sshd_config" <<CONF
Port $((base + 3))
ListenAddress $login
HostKey $dir/host_key
PidFile $dir/sshd.pid
AuthorizedKeysFile $dir/home/.ssh/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv SLURM_CONF=$dir/slurm.conf HOME=$dir/home
CONF
    echo "PATH=$dir/bin:\$PATH" >"$dir/home/.profile"
    echo "echo Welcome to the test cluster" >>"$dir/home/.profile"
    cat >"$dir/bin/srun" <<'WRAPPER'
#!/bin/sh
# Keeps what is Slurm's own, and notes what is of Pyxis.
here=$(dirname "$0")/..
kept=
while [ $# -gt 0 ]; do
    case $1 in
    --container-* | --no-container-*) echo "$1" >>"$here/srun.log" ;;
    --*) kept="$kept $1" ;;
    *) break ;;
    esac
    shift
done
exec /usr/bin/srun $kept "$here/bin/contained" "$@"
WRAPPER
    cat >"$dir/bin/contained" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp "$here/passwd.XXXXXX")
cat /etc/passwd >"$copy"
exec unshare --mount --propagation private sh -c 'copy=$1; shift; mount --bind "$copy" /etc/passwd; rm "$copy"; exec "$@"' contained "$copy" "$@"
WRAPPER
    chmod 755 "$dir/bin/srun" "$dir/bin/contained"
    ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"
    ssh-keygen -q -t ed25519 -N '' -f "$dir/key"
    cp "$dir/key.pub" "$dir/home/.ssh/authorized_keys"
    dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 2>/dev/null
    chmod 400 "$dir/munge.key"
}

# Stays when this script ends, and speaks to nobody.
daemon() { setsid "$@" >>"$dir/daemons.log" 2>&1 </dev/null || fail "$1 does not start: $(tail -n 3 "$dir/daemons.log")"; }

start() {
    login=${1:-127.0.0.1}
    needed
    files
    daemon munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
        --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
    daemon slurmctld -f "$dir/slurm.conf"
    daemon slurmd -f "$dir/slurm.conf" -N node1
    daemon slurmd -f "$dir/slurm.conf" -N node2
    daemon "$(command -v sshd)" -f "$dir/sshd_config"
    tries=0
    until [ "$(sinfo -h -N -p cpu -t idle -o %N 2>/dev/null | wc -l)" = 2 ]; do
        tries=$((tries + 1))
        [ "$tries" -le 150 ] || fail "the nodes do not come up: $(tail -n 5 "$dir"/*.log)"
        sleep 0.2
    done
    echo "port=$((base + 3))"
}

stop() {
    scancel --user=root 2>/dev/null || true
    tries=0
    while [ -n "$(squeue -h 2>/dev/null)" ] && [ "$tries" -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
    for daemon in sshd slurmd-node1 slurmd-node2 slurmctld munged; do
        pid=$(cat "$dir/$daemon.pid" 2>/dev/null) || continue
        tries=0
        while kill "$pid" 2>/dev/null && [ "$tries" -lt 50 ]; do
            tries=$((tries + 1))
            sleep 0.2
        done
    done
}

case $action in
start) start "$@" ;;
run) PATH=$dir/bin:$PATH HOME=$dir/home exec "$@" ;;
stop) stop ;;
*) usage ;;
esac
