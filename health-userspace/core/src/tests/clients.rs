use super::*;

fn shares(of: &[u32]) -> Clients {
    let mut clients = Clients::NONE;
    clients.0[..of.len()].copy_from_slice(of);
    clients
}

#[test]
fn nobody_stands_for_more_than_one_part_in_so_many() {
    for (name, of, min, failures, want) in [
        ("one client", &[1000][..], 3, 1000, 0),
        ("two", &[500, 500], 3, 1000, 0),
        ("three, a third each", &[100, 100, 100], 3, 300, 300),
        ("one, and strays of others", &[1000, 1, 1], 3, 1002, 3),
        ("two, and strays of others", &[1, 500, 2, 500], 3, 1003, 9),
        ("one that is loud, of many", &[30, 10, 10, 10, 10, 10, 10], 3, 90, 90),
        ("one that is too loud, of many", &[90, 10, 10, 10, 10, 10, 10], 3, 150, 90),
        ("noted twice each", &[200, 200, 200], 3, 300, 300),
        ("nobody knows whose", &[], 3, 300, 0),
        ("nobody asks whose", &[], 1, 300, 300),
        ("all of twenty", &[1; CLIENTS], 20, 100, 100),
        ("more than there are", &[1; CLIENTS], 255, 100, 0),
    ] {
        assert_eq!(shares(of).counted(min, failures), want, "{name}");
    }
}

#[test]
fn a_client_is_one_however_often() {
    let clients = shares(&[7, 0, 1]).with(0b1011);
    assert_eq!((clients, clients.spread()), (shares(&[8, 1, 1, 1]), 4));
    assert_eq!(clients.minus(&shares(&[9, 1])), shares(&[0, 0, 1, 1]), "a share that went back begins anew");
}

#[test]
fn shares_are_forgotten_after_a_window_and_a_half_at_most() {
    let at = |secs| Timestamp(Span::from_secs(secs).0);
    let mut window = ClientWindow::new(Span::from_secs(10));
    window.record(at(100), &shares(&[1]));
    window.record(at(109), &shares(&[0, 1]));
    assert_eq!(window.all(), shares(&[1, 1]));
    window.advance(at(114));
    assert_eq!(window.all(), shares(&[1, 1]), "within the window and a half");
    window.advance(at(115));
    assert_eq!(window.all(), shares(&[0, 1]));
    window.resize(Span::from_secs(20));
    assert_eq!(window.all(), shares(&[0, 1]));
    window.advance(at(1000));
    assert_eq!(window.all(), Clients::NONE);
}
