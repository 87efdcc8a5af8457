#!/bin/bash
# Runs cofferdam against a web server and a name server that stand in a network namespace of their own; called in
# fresh mount and network namespaces. Prints a line for each case.
set -u
cofferdam=$1 scratch=$2
ip link set lo up
mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add far
ip link add near0 type veth peer name far0 netns far
ip addr add 203.0.113.1/24 dev near0 && ip link set near0 up
ip -n far addr add 203.0.113.10/24 dev far0
ip -n far addr add 203.0.113.53/24 dev far0
ip -n far link set far0 up
ip -n far link set lo up
echo 'nameserver 203.0.113.53' >"$scratch/resolv.conf"
mount --bind "$scratch/resolv.conf" /etc/resolv.conf

# An authority, which the host trusts from here on, and a certificate of api.example.org by it.
key() { openssl req -newkey rsa:2048 -nodes -keyout "$scratch/$1.key" -subj "/CN=$2" "${@:3}" 2>/dev/null; }
key authority 'authority of a test' -x509 -days 2 -addext basicConstraints=critical,CA:TRUE >"$scratch/authority.pem"
key server api.example.org >"$scratch/server.csr"
echo 'subjectAltName=DNS:api.example.org' >"$scratch/names"
openssl x509 -req -in "$scratch/server.csr" -CA "$scratch/authority.pem" -CAkey "$scratch/authority.key" \
    -CAcreateserial -days 2 -extfile "$scratch/names" -out "$scratch/server.pem" 2>/dev/null
mount --bind "$scratch/authority.pem" /etc/ssl/certs/ca-certificates.crt
ip netns exec far python3 "$(dirname "$0")/far.py" "$scratch" &
far=$!
trap 'kill $far' EXIT
for _ in $(seq 100); do
    curl -s -o /dev/null http://203.0.113.10/ && break
    sleep 0.1
done

# case NAME GRANT URL: what curl printed, and its exit code.
case_of() {
    said=$("$cofferdam" run ${2:+--egress "$2"} -- curl -sS -m 10 "$3" 2>/dev/null)
    echo "$1: $? $said"
}
case_of name web.example.org:80 http://web.example.org/
case_of capital web.example.org:80 http://WEB.example.org/
case_of other-name web.example.org:80 http://other.example.org/
case_of address 203.0.113.0/24:80 http://203.0.113.10/
case_of other-port 203.0.113.10:80 http://203.0.113.10:81/
case_of own-address 203.0.113.0/24:80 http://203.0.113.1/
case_of metadata 0.0.0.0/0:80 http://169.254.169.254/
case_of nothing '' http://203.0.113.10/
case_of unlisted-host web.example.org:80 http://203.0.113.10/
"$cofferdam" run --json --egress web.example.org:80 -- \
    sh -c 'curl -sS http://web.example.org/; curl -sS http://other.example.org/ 2>&1' >"$scratch/reply.json"

python3 "$(dirname "$0")/lost.py" "$cofferdam"

# An address that swallows everything. In a cell with a writable grant init connects for programs.
ip -n far route add blackhole 203.0.113.99/32
ip neigh replace 203.0.113.99 dev near0 lladdr "$(ip -n far -o link show far0 | sed 's/.*ether \([^ ]*\).*/\1/')"
mkdir -p "$scratch/granted" && chmod 755 "$scratch" && chmod 777 "$scratch/granted" && cp "$(dirname "$0")/many.py" "$scratch/granted"
said=$("$cofferdam" run --rw "$scratch/granted" --egress 203.0.113.0/24:80,82 -- python3 many.py 2>/dev/null)
echo "many-connections: $said"

# A secret that the cell never has.
mkdir -p "$scratch/configuration/sandbox-profiles"
printf 'the-secret-of-this-test' >"$scratch/token" && chmod 600 "$scratch/token"
cat >"$scratch/configuration/cofferdam.toml" <<END
schema = 1
[[secret]]
name = "api"
from = "file:$scratch/token"
END
cat >"$scratch/configuration/sandbox-profiles/api.toml" <<'END'
schema = 1
name = "api"
extends = "bash"
description = "bash, and one API for reading"
network = { class = "allow-list", why = "one API" }
[[egress]]
id = "api"
hosts = ["api.example.org"]
ports = [443]
http = [{ methods = ["GET"], paths = ["/ok/**"] }]
secret = { name = "api", header = "authorization", form = "bearer", env = "API_TOKEN" }
why = "read, never write"
END
asked() {
    said=$("$cofferdam" --config "$scratch/configuration" run --profile api -- bash -c "$2" 2>/dev/null)
    echo "$1: $? $said"
}
bearer='-H "Authorization: Bearer $API_TOKEN"'
asked secret "curl -sS -m 10 $bearer https://api.example.org/ok/a"
asked secret-elsewhere "curl -sS -m 10 -o /dev/null -w '%{http_code}' 'https://api.example.org/ok/a?t='\$API_TOKEN"
asked other-path "curl -sS -m 10 -o /dev/null -w '%{http_code}' $bearer https://api.example.org/no"
asked other-method "curl -sS -m 10 -o /dev/null -w '%{http_code}' $bearer -d x https://api.example.org/ok/a"
asked no-secret-inside "env | grep -c the-secret-of-this-test; grep -rlsF the-secret-of-this-test /etc /tmp /workspace | head -1"
