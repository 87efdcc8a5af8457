"""Answers echo requests of ICMP with an odd number, and loses the others."""
import socket, struct


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) & ~1]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


wire = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
wire.bind(("10.9.0.5", 0))
while True:
    packet, (sender, _) = wire.recvfrom(65535)
    message = packet[(packet[0] & 15) * 4:]
    kind, _, _, ident, number = struct.unpack("!BBHHH", message[:8])
    if kind == 8 and number % 2:
        body = struct.pack("!HH", ident, number) + message[8:]
        head = struct.pack("!BBH", 0, 0, checksum(b"\0\0\0\0" + body))
        wire.sendto(head + body, (sender, 0))
