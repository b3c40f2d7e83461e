#!/bin/sh
# Hosts for tests: machines of their own as far as SSH, processes, files and the network go, made of this one.
#
#   host.sh start DIR NAME ADDRESS [systemd] [docker] [sudo]
#                              a host at ADDRESS (10.x.y.z, one /24 for each DIR), with a real OpenSSH on port 22
#   host.sh stop DIR NAME      ends it with everything that runs there, and removes it
#   host.sh clean DIR all      the same for all hosts of DIR
#   host.sh cut DIR NAME       takes its network away;  host.sh heal DIR NAME  gives it back
#   host.sh run DIR NAME COMMAND...   runs a command there as root
#
# The file DIR/authorized_keys may log in as root and as user "me". Files are those of this machine under an overlay, so
# that whatever is installed here is there too, but nothing of root's own; what a host writes lies under DIR. With `systemd`
# it is process 1, otherwise sshd is started by a shell. With `docker` the host has an engine of its own with the image
# dstack-test/busybox:1 made of this machine's busybox; without it no client and no engine. With `sudo` user "me" needs no
# password for it.
# Needs root, ip, unshare, overlay, sshd. Exit 3 and a line on stderr: such hosts cannot be made here, with the reason.
set -eu

usage() { echo "usage: host.sh start|stop|clean|cut|heal|run DIR NAME ..." >&2; exit 2; }
skip() { echo "no host: $*" >&2; exit 3; }
fail() { echo "host $name: $*" >&2; exit 1; }
# That of whoever makes the host is not the host's.
unset DOCKER_HOST

[ $# -ge 3 ] || usage
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
name=$3
shift 3
home=$dir/$name
# Names of interfaces and namespaces are of the whole machine: one stem for each DIR.
stem=dst$(printf %s "$dir" | cksum | cut -c1-5)
bridge=$stem
space=$stem-$name

network() {
    prefix=${address%.*}
    if ! ip link show "$bridge" >/dev/null 2>&1; then
        ip link add name "$bridge" type bridge 2>/dev/null || true
        ip addr add "$prefix.1/24" dev "$bridge" 2>/dev/null || true
        ip link set "$bridge" up || skip "no bridge can be made"
    fi
    ip netns add "$space" || skip "no network namespace can be made"
    # Short: names of interfaces have 15 characters at most.
    link=$stem$(printf %s "$name" | cksum | cut -c1-4)
    ip link add "$link" type veth peer name eth0 netns "$space"
    ip link set "$link" master "$bridge" up
    echo "$link" >"$home/link"
    ip -n "$space" addr add "$address/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
    ip -n "$space" route add default via "$prefix.1"
}

# Control groups that limit what jobs take: those of the first kind, where this machine has them and the host has no systemd,
# which uses the second kind.
limiting_groups() {
    case " $* " in
    *' systemd '*) return 0 ;;
    esac
    for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
        if grep -q "^cgroup /sys/fs/cgroup/$controller " /proc/mounts; then echo "$controller"; fi
    done
}

mount_groups() {
    controllers=$(limiting_groups "$@")
    if [ -z "$controllers" ]; then
        echo "mount -t cgroup2 cgroup2 $root/sys/fs/cgroup"
        return 0
    fi
    echo "mount -t tmpfs -o mode=755 tmpfs $root/sys/fs/cgroup"
    for controller in $controllers; do
        echo "mkdir $root/sys/fs/cgroup/$controller"
        echo "mount -t cgroup -o $controller cgroup $root/sys/fs/cgroup/$controller"
    done
}

# Makes the host's own in each hierarchy.
make_groups() {
    for controller in $(limiting_groups "$@"); do
        group=/sys/fs/cgroup/$controller/$space
        mkdir -p "$group"
        if [ "$controller" = cpuset ]; then
            cat "$group/../cpuset.cpus" >"$group/cpuset.cpus"
            cat "$group/../cpuset.mems" >"$group/cpuset.mems"
            echo 1 >"$group/cgroup.clone_children"
        fi
        echo "$group"
    done
    mkdir -p "$(control_groups)/$space"
    echo "$(control_groups)/$space"
}

# Process 1 of the host: its files, then sshd.
files() {
    root=$home/root
    mkdir -p "$home/upper" "$home/work" "$home/var" "$home/own" "$root"
    cat >"$home/init" <<INIT
set -eu
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir=$home/upper,workdir=$home/work $root
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
$(mount_groups "$@")
mount -t tmpfs -o mode=755 tmpfs $root/dev
for node in null zero full random urandom tty; do
    touch $root/dev/\$node
    mount --bind /dev/\$node $root/dev/\$node
done
mkdir -p $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
ln -s /dev/fd/0 $root/dev/stdin
ln -s /dev/fd/1 $root/dev/stdout
ln -s /dev/fd/2 $root/dev/stderr
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=755 tmpfs $root/run
mkdir -p $root/run/sshd $root/var/lib/docker
mount --bind $home/var $root/var/lib/docker
mount --bind $home/own $root/root
hostname $name
cd $root
pivot_root . mnt
umount -l /mnt
exec /host-init
INIT
}

# What is different on this host than on this machine.
furnish() {
    upper=$home/upper
    mkdir -p "$upper/etc/sudoers.d" "$upper/etc/ssh" "$upper/etc/systemd/system" "$upper/usr/bin" "$upper/home/me/.ssh"
    cp /etc/passwd "$upper/etc/passwd"
    cp /etc/group "$upper/etc/group"
    cp /etc/shadow "$upper/etc/shadow"
    grep -q '^me:' "$upper/etc/passwd" || echo 'me:x:4242:4242::/home/me:/bin/sh' >>"$upper/etc/passwd"
    grep -q '^me:' "$upper/etc/group" || echo 'me:x:4242:' >>"$upper/etc/group"
    grep -q '^me:' "$upper/etc/shadow" || echo 'me:*:19000::::::' >>"$upper/etc/shadow"
    # Nothing of this machine's root.
    mkdir -p "$home/own/.ssh"
    chmod 700 "$home/own" "$home/own/.ssh"
    cp "$dir/authorized_keys" "$home/own/.ssh/authorized_keys"
    cp "$dir/authorized_keys" "$upper/home/me/.ssh/authorized_keys"
    chown -R 4242:4242 "$upper/home/me"
    chmod 700 "$upper/home/me/.ssh"
    echo "$name" >"$upper/etc/hostname"
    # Nobody answers questions for names there: without servers none is waited for.
    rm -f "$upper/etc/resolv.conf"
    : >"$upper/etc/resolv.conf"
    echo "127.0.0.1 localhost" >"$upper/etc/hosts"
    case " $* " in
    # Elsewhere sudo warns that it does not know the host's name: that is harmless.
    *' systemd '*) echo "127.0.1.1 $name" >>"$upper/etc/hosts" ;;
    esac
    ssh-keygen -q -t ed25519 -N '' -f "$upper/etc/ssh/test_host_key"
    cat >"$upper/etc/ssh/test_sshd_config" <<SSHD
HostKey /etc/ssh/test_host_key
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes yes
Subsystem sftp internal-sftp
MaxStartups 100:30:200
SSHD
    case " $* " in
    *' sudo '*)
        echo 'me ALL=(ALL) NOPASSWD:ALL' >"$upper/etc/sudoers.d/me"
        chmod 440 "$upper/etc/sudoers.d/me"
        ;;
    esac
    engine=""
    case " $* " in
    *' docker '*) engine="dockerd --storage-driver vfs --iptables=false --ip6tables=false" ;;
    *)
        # A whiteout: the program is not on this host.
        for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
            for program in docker dockerd; do
                [ -e "$folder/$program" ] && [ ! -L "$folder" ] || continue
                mkdir -p "$upper$folder"
                mknod "$upper$folder/$program" c 0 0
            done
        done
        ;;
    esac
    case " $* " in
    *' systemd '*)
        unit ssh-test "/usr/sbin/sshd -D -e -f /etc/ssh/test_sshd_config"
        wants="ssh-test.service"
        if [ -n "$engine" ]; then
            unit docker-test "$(command -v dockerd) ${engine#dockerd}"
            wants="$wants docker-test.service"
        fi
        cat >"$upper/etc/systemd/system/test.target" <<TARGET
[Unit]
Description=What a host of tests does
Wants=$wants systemd-journald.service
AllowIsolate=yes
TARGET
        for unwanted in systemd-udevd systemd-udev-trigger systemd-networkd systemd-resolved systemd-logind systemd-timesyncd \
            docker containerd ssh getty@tty1 console-getty systemd-remount-fs systemd-firstboot systemd-sysusers; do
            ln -sf /dev/null "$upper/etc/systemd/system/$unwanted.service"
        done
        for unwanted in sysinit local-fs; do
            printf '[Unit]\nDescription=nothing of it\nDefaultDependencies=no\n' >"$upper/etc/systemd/system/$unwanted.target"
        done
        printf '#!/bin/sh\nexport container=test\nexec /lib/systemd/systemd --unit=test.target --log-level=warning\n' >"$upper/host-init"
        ;;
    *)
        cat >"$upper/host-init" <<INIT
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
${engine:+$engine >/var/log/dockerd.log 2>&1 &}
/usr/sbin/sshd -e -f /etc/ssh/test_sshd_config 2>/var/log/sshd.log
# Orphans are collected as by any process 1.
while :; do wait || true; sleep 1; done
INIT
        ;;
    esac
    chmod 755 "$upper/host-init"
}

# The image that hosts with an engine get, made of this machine's static busybox.
image() {
    [ ! -f "$dir/image.tar" ] || return 0
    busybox=$(command -v busybox) || skip "no busybox to make an image of"
    mkdir -p "$dir/image/bin" "$dir/image/etc" "$dir/image/tmp" "$dir/image/root"
    chmod 1777 "$dir/image/tmp"
    cp "$busybox" "$dir/image/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -sf busybox "$dir/image/bin/$applet"
    done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$dir/image/etc/passwd"
    echo 'root:x:0:' >"$dir/image/etc/group"
    tar -C "$dir/image" -cf "$dir/image.tar" .
}

# Where the second kind of control groups is mounted. Never over what this machine has: its own engine needs that.
control_groups() {
    found=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    if [ -z "$found" ]; then
        found=$dir/cgroup
        mkdir -p "$found"
        mount -t cgroup2 none "$found" 2>/dev/null || skip "no control groups"
    fi
    echo "$found"
}

unit() {
    cat >"$home/upper/etc/systemd/system/$1.service" <<UNIT
[Unit]
DefaultDependencies=no
[Service]
ExecStart=$2
Restart=on-failure
UNIT
}

inside() {
    nsenter --target "$(cat "$home/pid")" --all --root --wd=/ "$@"
}

start() {
    [ "$(id -u)" = 0 ] || skip "not root"
    for tool in ip unshare nsenter sshd; do
        command -v "$tool" >/dev/null 2>&1 || PATH=$PATH:/usr/sbin:/sbin
        command -v "$tool" >/dev/null 2>&1 || skip "$tool is not installed"
    done
    address=$1
    shift
    mkdir -p "$home"
    network
    files "$@"
    furnish "$@"
    case " $* " in
    *' docker '*) image ;;
    esac
    make_groups "$@" >"$home/groups"
    setsid sh -c "while read -r group; do echo \$\$ >\$group/cgroup.procs; done <$home/groups; exec ip netns exec $space unshare --mount --uts --ipc --cgroup --pid --fork --kill-child sh -c 'exec sh $home/init'" \
        >"$home/log" 2>&1 </dev/null 9>&- &
    outer=$!
    echo "$outer" >"$home/outer"
    # Others of DIR may start while this one comes up.
    flock -u 9
    tries=0
    while :; do
        child=$(pgrep -P "$outer" 2>/dev/null | head -n 1 || true)
        [ -z "$child" ] || echo "$child" >"$home/pid"
        if [ -n "$child" ] && ssh-keyscan -T 1 "$address" 2>/dev/null | grep -q ssh-ed25519; then break; fi
        kill -0 "$outer" 2>/dev/null || skip "$(tail -n 3 "$home/log")"
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "its sshd does not answer: $(tail -n 3 "$home/log")"
        sleep 0.1
    done
    case " $* " in
    *' docker '*)
        tries=0
        until inside docker version >/dev/null 2>&1; do
            tries=$((tries + 1))
            [ "$tries" -lt 300 ] || fail "its engine does not answer"
            sleep 0.1
        done
        inside docker import - dstack-test/busybox:1 <"$dir/image.tar" >/dev/null
        ;;
    esac
}

stop() {
    if [ -f "$home/pid" ]; then
        # The last process of a namespace takes all others with it.
        kill -9 "$(cat "$home/pid")" 2>/dev/null || true
        while kill -0 "$(cat "$home/outer")" 2>/dev/null; do sleep 0.05; done
    fi
    ip netns del "$space" 2>/dev/null || true
    ip link del "$(cat "$home/link" 2>/dev/null || echo none)" 2>/dev/null || true
    while read -r group; do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done <"$home/groups" 2>/dev/null || true
    rm -rf "$home"
    # The last one takes the bridge with it.
    [ -n "$(ls "/sys/class/net/$bridge/brif" 2>/dev/null)" ] || ip link del "$bridge" 2>/dev/null || true
}

case $action in
start) exec 9>"$dir/lock"; flock 9; [ $# -ge 1 ] || usage; start "$@" ;;
stop) exec 9>"$dir/lock"; flock 9; stop ;;
clean)
    exec 9>"$dir/lock"
    flock 9
    for home in "$dir"/*/; do
        name=$(basename "$home")
        [ -f "$home/link" ] || continue
        home=$dir/$name
        space=$stem-$name
        stop
    done
    ;;
cut) ip link set "$(cat "$home/link")" down ;;
heal) ip link set "$(cat "$home/link")" up ;;
run) inside "$@" ;;
*) usage ;;
esac
