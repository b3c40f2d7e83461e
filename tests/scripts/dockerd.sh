#!/bin/sh
# Starts a Docker engine of its own for tests, or finds the one it started before.
#
#   dockerd.sh start DIR   prints "DOCKER_HOST=unix://DIR/docker.sock" once the engine answers
#   dockerd.sh stop DIR    stops that engine (and no other)
#
# Everything the engine writes lies under DIR. Needs root, dockerd, containerd and runc (Debian: docker.io).
# The image "dstack-test/busybox:1" is made from the host's static busybox: no registry is needed.
# Exit 3 and a line on stderr: an engine cannot run here, with the reason.
set -eu

usage() { echo "usage: dockerd.sh start|stop DIR" >&2; exit 2; }
skip() { echo "no Docker engine: $*" >&2; exit 3; }

[ $# -eq 2 ] || usage
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
socket=$dir/docker.sock
pidfile=$dir/dockerd.pid
image=dstack-test/busybox:1
empty=dstack-test/empty:2

answers() { DOCKER_HOST=unix://$socket docker version >/dev/null 2>&1; }

# One bridge per engine: two engines on one bridge would hand out the same addresses.
number=$(printf %s "$dir" | cksum | cut -d' ' -f1)
bridge=dstack$((number % 1000))
subnet=10.213.$((number % 250)).1/24

make_bridge() {
    ip link show "$bridge" >/dev/null 2>&1 && return 0
    ip link add name "$bridge" type bridge 2>/dev/null || return 1
    ip addr add "$subnet" dev "$bridge" && ip link set "$bridge" up
}

mount_cgroups() {
    [ -e /sys/fs/cgroup/cgroup.controllers ] || [ -d /sys/fs/cgroup/memory ] && return 0
    mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || true
}

make_image() {
    DOCKER_HOST=unix://$socket docker image inspect "$image" "$empty" >/dev/null 2>&1 && return 0
    busybox=$(command -v busybox) || { echo "no busybox: image $image not made" >&2; return 0; }
    root=$dir/rootfs
    mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/root"
    chmod 1777 "$root/tmp"
    cp "$busybox" "$root/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
    done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    tar -C "$root" -c . | DOCKER_HOST=unix://$socket docker import - "$image" >/dev/null
    # No program at all, just the accounts: what the smallest images look like.
    tar -C "$root" -c etc | DOCKER_HOST=unix://$socket docker import - "$empty" >/dev/null
}

start() {
    if ! answers; then
        [ "$(id -u)" = 0 ] || skip "not root"
        for tool in dockerd docker containerd runc; do
            command -v "$tool" >/dev/null 2>&1 || PATH=$PATH:/usr/sbin:/sbin
            command -v "$tool" >/dev/null 2>&1 || skip "$tool is not installed"
        done
        mount_cgroups
        network="--iptables=false --ip6tables=false"
        if make_bridge; then network="$network --bridge $bridge"; else network="$network --bridge=none"; fi
        for driver in overlay2 vfs; do
            # shellcheck disable=SC2086 # the flags are words
            setsid dockerd --data-root "$dir/data-$driver" --exec-root "$dir/exec" --pidfile "$pidfile" \
                --host "unix://$socket" --storage-driver "$driver" $network \
                >"$dir/dockerd.log" 2>&1 </dev/null 9>&- &
            engine=$!
            tries=0
            while ! answers; do
                kill -0 "$engine" 2>/dev/null || break
                tries=$((tries + 1))
                [ "$tries" -lt 300 ] || break
                sleep 0.1
            done
            answers && break
            kill "$engine" 2>/dev/null || true
            wait "$engine" 2>/dev/null || true
        done
        answers || skip "$(tail -n 1 "$dir/dockerd.log")"
    fi
    make_image
    echo "DOCKER_HOST=unix://$socket"
}

stop() {
    [ -f "$pidfile" ] || return 0
    pid=$(cat "$pidfile")
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    ip link del "$bridge" 2>/dev/null || true
}

# Several tests may ask at once: one starts the engine. (The engine itself must not keep the lock.)
exec 9>"$dir/lock"
flock 9
case $action in
start) start ;;
stop) stop ;;
*) usage ;;
esac
