use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Addresses of the packet, and its TCP header; the checksum is proven.
fn read(bytes: &[u8]) -> (IpAddr, IpAddr, TcpSlice<'_>) {
    let packet = SlicedPacket::from_ip(bytes).expect("a packet");
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("not TCP") };
    let (from, to, sum) = match packet.net.expect("an IP header") {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
            (header.source_addr().into(), header.destination_addr().into(), sum)
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            let sum = tcp.calc_checksum_ipv6(header.source(), header.destination());
            (header.source_addr().into(), header.destination_addr().into(), sum)
        }
        other @ NetSlice::Arp(_) => panic!("{other:?}"),
    };
    assert_eq!(sum.expect("it is short"), tcp.checksum());
    (from, to, tcp)
}

#[test]
fn a_rst_has_the_right_numbers_and_sums() {
    for [from, to] in [["192.0.2.1:80", "198.51.100.7:40000"], ["[2001:db8::1]:80", "[2001:db8::7]:40000"]] {
        let (from, to) = (address(from), address(to));
        let bytes = packet(from, to, 0xdead_beef, 0x0bad_cafe).expect("one family");
        let (source, target, tcp) = read(&bytes);
        assert_eq!((source, target), (from.ip(), to.ip()));
        assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 40_000));
        assert_eq!((tcp.sequence_number(), tcp.acknowledgment_number()), (0xdead_beef, 0x0bad_cafe));
        assert!(tcp.rst() && tcp.ack() && !tcp.syn() && !tcp.fin());
    }
}

#[test]
fn families_do_not_mix() {
    assert_eq!(packet(address("192.0.2.1:80"), address("[2001:db8::7]:40000"), 0, 0), None);
    assert!(packet(address("[::ffff:192.0.2.1]:80"), address("198.51.100.7:40000"), 0, 0).is_some());
}

#[test]
fn each_side_hears_from_the_address_that_it_knows() {
    let tuple = |node, remote| Tuple { node: address(node), remote: address(remote) };
    let asked = tuple("198.51.100.7:40000", "192.0.2.1:80");
    let served = tuple("198.51.100.7:40001", "192.0.2.2:8080");
    let numbers = Numbers { node_next: 10, node_ack: 19, origin_next: 20, origin_ack: 9 };
    let [client, origin] = FlowReset { asked, served, numbers }.sides();
    assert_eq!(client, (Side::Client, asked.remote, asked.node, [20, 19], 10));
    assert_eq!(origin, (Side::Origin, served.node, served.remote, [10, 9], 20));
}
