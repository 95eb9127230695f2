use netlink_packet_core::ErrorMessage;
use netlink_packet_sock_diag::inet::InetResponseHeader;

use super::*;

fn socket(attributes: Vec<Nla>) -> InetResponse {
    let header = InetResponseHeader {
        family: AF_INET,
        state: 1,
        timer: None,
        socket_id: SocketId::new_v4(),
        recv_queue: 0,
        send_queue: 0,
        uid: 0,
        inode: 0,
    };
    InetResponse { header, nlas: attributes.into() }
}

/// A socket without anything on the way, that last sent and received payload so many ms ago.
fn quiet(sent_ms: u32, received_ms: u32, ack_ms: u32) -> Facts {
    let mut info = TcpInfo::parse(&[0; 512]).expect("it is long enough");
    (info.last_data_sent, info.last_data_recv, info.last_ack_recv) = (sent_ms, received_ms, ack_ms);
    Facts { mark: 0, unacknowledged: 0, info: Some(info) }
}

const QUIET: Duration = Duration::from_millis(100);

#[test]
fn a_kernel_without_destroy_has_a_name_of_its_own() {
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOENT] {
        assert!(matches!(DestroyError::of(errno), DestroyError::Unsupported), "{errno}");
    }
    assert!(matches!(DestroyError::of(libc::EPERM), DestroyError::Permission));
    assert!(DestroyError::of(libc::ENOBUFS).is_transient());
    assert!(!DestroyError::Unsupported.is_transient());
}

#[test]
fn a_socket_whose_mark_is_kept_from_us_is_not_judged() {
    assert!(Facts::of(&socket(vec![])).is_none());
    assert_eq!(Facts::of(&socket(vec![Nla::Mark(7)])).map(|facts| facts.mark), Some(7));
}

#[test]
fn a_socket_that_nothing_is_known_of_is_neither_idle_nor_stalled() {
    let facts = Facts::of(&socket(vec![Nla::Mark(0)])).expect("the mark is there");
    assert!(facts.is(Which::All));
    assert!(!facts.is(Which::Idle { quiet: Duration::ZERO }));
    assert!(!facts.is(Which::Stalled { quiet: Duration::ZERO }));
}

#[test]
fn idle_is_an_answered_connection_and_stalled_a_waiting_one() {
    let (idle, stalled) = (Which::Idle { quiet: QUIET }, Which::Stalled { quiet: QUIET });
    let is = |facts: &Facts| (facts.is(idle), facts.is(stalled));
    assert_eq!(is(&quiet(200, 150, 150)), (true, false), "answered, then quiet");
    assert_eq!(is(&quiet(200, 50, 50)), (false, false), "answered just now");
    assert_eq!(is(&quiet(150, 200, 150)), (false, true), "asked, acknowledged, not answered");
    assert_eq!(is(&quiet(150, 200, 50)), (false, false), "the peer still acknowledges an upload");
    let mut waiting = quiet(200, 150, 150);
    waiting.unacknowledged = 1;
    assert_eq!(is(&waiting), (false, true), "a byte is on the way");
}

#[test]
fn mapped_addresses_are_those_of_ipv4() {
    let mapped = "::ffff:192.0.2.1".parse().expect("an address");
    let id = SocketId { destination_address: mapped, destination_port: 80, ..SocketId::new_v6() };
    assert_eq!(tuple(&id).remote, "192.0.2.1:80".parse().expect("an address"));
}

#[test]
fn a_datagram_is_read_to_its_end_and_a_torn_one_is_an_error() {
    let mut error = ErrorMessage::default();
    error.code = std::num::NonZeroI32::new(-libc::EPERM);
    let mut message = NetlinkMessage::<SockDiagMessage>::new(NetlinkHeader::default(), NetlinkPayload::Error(error));
    message.finalize();
    let mut one = vec![0; message.buffer_len()];
    message.serialize(&mut one);
    let both = [one.clone(), one.clone()].concat();
    assert_eq!(messages::<SockDiagMessage>(&both).map(|found| found.len()).ok(), Some(2));
    assert!(matches!(messages::<SockDiagMessage>(&both[..one.len() + 10]), Err(DestroyError::Answer(_))));
}
