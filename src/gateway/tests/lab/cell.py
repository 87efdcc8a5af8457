"""A cell's side of the link, as cells make it: a veth pair, and a packet socket on its outer end."""
import socket, struct, subprocess, sys

def ip(*words):
    subprocess.run(["ip", *words], check=True)

open("/proc/sys/net/ipv6/conf/default/accept_dad", "w").write("0")
ip("link", "set", "lo", "up")
ip("link", "add", "eth0", "mtu", "65535", "type", "veth", "peer", "name", "out", "mtu", "65535")
for name in ["out", "eth0"]:
    ip("link", "set", name, "arp", "off", "addrgenmode", "none")
    ip("link", "set", name, "up")
ip("addr", "add", "10.0.2.15/24", "dev", "eth0")
ip("addr", "add", "fd00::15/64", "dev", "eth0", "nodad")
ip("route", "add", "default", "via", "10.0.2.2")
ip("-6", "route", "add", "default", "via", "fd00::2")
open("/proc/sys/net/ipv4/ping_group_range", "w").write("0 0")
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)

packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
packets.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
packets.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
packets.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
packets.bind(("out", 3))
link = socket.socket(fileno=0)
socket.send_fds(link, [b"p"], [packets.fileno()])
packets.close()
link.recv(1)
