#!/bin/bash
# Makes a laboratory of network namespaces in fresh mount and network namespaces, and runs a program in it: hosts
# 10.9.0.2 and 10.9.0.3 (80 and 25 open, 81 filtered, 83 open and losing packets, others closed), one that loses all packets
# (10.9.0.4), one that loses every second echo request (10.9.0.5), one behind a router (10.8.0.2), the same of IPv6, and a
# public address.
set -eu
scratch=$1
shift
program=("$@")
ip link set lo up
mkdir -p /run/netns && mount -t tmpfs none /run/netns
ip netns add far && ip netns add deep && ip netns add half
ip link add near0 type veth peer name far0 netns far
ip -n far link add far1 type veth peer name deep0 netns deep
for address in 10.9.0.1/24 203.0.113.1/24; do ip addr add $address dev near0; done
ip addr add fd12::1/64 dev near0 nodad && ip link set near0 up
for address in 10.9.0.2/24 10.9.0.3/24 10.9.0.53/24 203.0.113.10/24; do
    ip -n far addr add $address dev far0
done
ip -n far addr add fd12::2/64 dev far0 nodad
ip -n far addr add 10.8.0.1/24 dev far1
ip -n deep addr add 10.8.0.2/24 dev deep0
ip -n far link add far2 type veth peer name half0 netns half
ip -n half addr add 10.7.0.2/24 dev half0
ip -n half addr add 10.9.0.5/32 dev lo
ip -n far addr add 10.7.0.1/24 dev far2
for place in 'far far0' 'far far1' 'far far2' 'far lo' 'deep deep0' 'deep lo' 'half half0' 'half lo'; do
    set -- $place && ip -n $1 link set $2 up
done
ip -n deep route add default via 10.8.0.1
ip -n half route add default via 10.7.0.1
ip -n far route add 10.9.0.5 via 10.7.0.2
ip route add 10.8.0.0/24 via 10.9.0.2
ip route add 10.9.0.5 via 10.9.0.2
# Without a rate for errors, which would hide a hop from the second of two programs.
ip netns exec far sysctl -qw net.ipv4.ip_forward=1 net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
ip netns exec deep sysctl -qw net.ipv4.icmp_ratelimit=0
sysctl -qw net.ipv4.ping_group_range='0 2147483647'
# Packets to this one are dropped, and nothing says so.
ip route add 10.9.0.4 via 10.9.0.2
ip -n far route add blackhole 10.9.0.4
echo 'nameserver 10.9.0.53' >"$scratch/resolv.conf"
mount --bind "$scratch/resolv.conf" /etc/resolv.conf
# Echo requests to this one are answered by a program, not all of them.
ip netns exec half sysctl -qw net.ipv4.icmp_echo_ignore_all=1
here=$(dirname "$0")
ip netns exec half python3 "$here/half.py" &
half=$!
ip netns exec far python3 "$here/lab.py" &
servers=$!
trap 'kill $servers $half' EXIT
for _ in $(seq 100); do
    curl -s -o /dev/null http://10.9.0.2/ && break
    sleep 0.1
done
"${program[@]}"
