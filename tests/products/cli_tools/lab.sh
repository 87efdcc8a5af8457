#!/bin/bash
# Makes a laboratory in fresh mount and network namespaces, 10.77.0.10 in a namespace of its own, and becomes a server
# of cofferdam in front of it: lab.sh COFFERDAM ARGUMENT…
set -eu
{
    ip link set lo up
    mkdir -p /run/netns
    mount -t tmpfs none /run/netns
    ip netns add far
    ip link add near0 type veth peer name far0 netns far
    ip addr add 10.77.0.1/24 dev near0
    ip link set near0 up
    ip -n far addr add 10.77.0.10/24 dev far0
    ip -n far link set far0 up
    ip -n far link set lo up
    ip netns exec far python3 "$(dirname "$0")/lab.py" </dev/null &
    for _ in $(seq 100); do
        (: >/dev/tcp/10.77.0.10/80) 2>/dev/null && break
        sleep 0.1
    done
} >&2
exec "$@"
