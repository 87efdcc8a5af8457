#!/bin/bash
# Makes a network of servers in fresh mount and network namespaces, and runs a program in it: a public host of several
# names below example.org, and a private one, each with TLS that the host trusts and with repositories of git.
set -eu
scratch=$1 here=$(realpath "$(dirname "$0")")
shift
ip link set lo up
mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add far
ip link add near0 type veth peer name far0 netns far
for address in 203.0.113.1/24 10.9.0.1/24; do ip addr add "$address" dev near0; done
ip link set near0 up
for address in 203.0.113.10/24 203.0.113.53/24 10.9.0.2/24; do ip -n far addr add "$address" dev far0; done
ip -n far link set far0 up
ip -n far link set lo up
echo 'nameserver 203.0.113.53' >"$scratch/resolv.conf"
mount --bind "$scratch/resolv.conf" /etc/resolv.conf
key() { openssl req -newkey rsa:2048 -nodes -keyout "$scratch/$1.key" -subj "/CN=$2" "${@:3}" 2>/dev/null; }
key authority 'authority of a test' -x509 -days 2 -addext basicConstraints=critical,CA:TRUE >"$scratch/authority.pem"
key server api.example.org >"$scratch/server.csr"
echo 'subjectAltName=DNS:*.example.org' >"$scratch/names"
openssl x509 -req -in "$scratch/server.csr" -CA "$scratch/authority.pem" -CAkey "$scratch/authority.key" \
    -CAcreateserial -days 2 -extfile "$scratch/names" -out "$scratch/server.pem" 2>/dev/null
mount --bind "$scratch/authority.pem" /etc/ssl/certs/ca-certificates.crt

# Repositories: a file, one below a folder with a space, a link; and one that is larger than its limit.
export HOME=$scratch GIT_CONFIG_NOSYSTEM=1
git config --global init.defaultBranch main && git config --global user.email a@example.org && git config --global user.name a
git init -q "$scratch/work" && cd "$scratch/work"
mkdir 'b c' && echo 'of a' >a.txt && echo 'of d' >'b c/d.txt' && ln -s /etc/passwd link
git add . && git commit -qm one && git clone -q --bare . "$scratch/r.git"
head -c 3000000 /dev/urandom >large && git add . && git commit -qm two && git clone -q --bare . "$scratch/large.git"
cd /
ip netns exec far python3 "$here/lab.py" "$scratch" &
servers=$!
trap 'kill $servers' EXIT
for _ in $(seq 100); do
    curl -s -o /dev/null https://api.example.org/ok && break
    sleep 0.1
done
: >"$scratch/requests"
"$@"
