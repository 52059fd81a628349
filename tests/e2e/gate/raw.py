# Every socket that does not ask the gate. The addresses are those of documentation (RFC 5737, RFC 3849).
import errno, socket, sys
def outcome(call):
    try:
        call()
        return "reached"
    except OSError as error:
        known = {errno.ECONNREFUSED: "refused", errno.ENETUNREACH: "unreachable", errno.EADDRNOTAVAIL: "unreachable"}
        return known.get(error.errno, repr(error))
def tcp(address):
    socket.create_connection(address, timeout=10)
def udp(family, address):
    socket.socket(family, socket.SOCK_DGRAM).sendto(b"x", address)
def may(kind, protocol):
    try:
        one = socket.socket(socket.AF_INET, kind, protocol)
        one.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00", ("192.0.2.1", 0))
        return "yes"
    except OSError:
        return "no"
print("tcp", outcome(lambda: tcp(("127.0.0.1", int(sys.argv[1])))))
print("tcp", outcome(lambda: tcp(("192.0.2.1", 443))))
print("udp", outcome(lambda: udp(socket.AF_INET, ("192.0.2.1", 53))))
print("udp6", outcome(lambda: udp(socket.AF_INET6, ("2001:db8::1", 53))))
print("icmp", may(socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
print("raw", may(socket.SOCK_RAW, socket.IPPROTO_ICMP))
