//! Neighbour entries: whether the next hop of an origin is found on its link (ARP, RFC 826; ND, RFC 4861).
//!
//! A dead host on the same link is told by nobody: its packets wait for an address that nobody answers for. The kernel's
//! entry turns FAILED after a few questions (`mcast_solicit`, 3 in 3 s), and says so.

use std::{io, net::IpAddr};

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::{
    IpVersion, new_connection,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    },
    sys::{AsyncSocket, SocketAddr},
};
use tokio::sync::mpsc;

/// `RTNLGRP_NEIGH` as a bit of `sockaddr_nl.nl_groups`.
const NEIGHBOURS: u32 = 1 << 2;

/// Words that wait for the loop. A link that goes down says one for each of its neighbours.
const WAITING_MAX: usize = 4096;

/// What became of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Number of the interface.
    pub interface: u32,
    /// Its address on the link.
    pub address: IpAddr,
    /// Whether nobody answered for it. False when somebody has, and when there is no entry any more.
    pub failed: bool,
}

/// Listens for what becomes of neighbours, of both families, in this namespace.
pub struct Neighbours {
    words: mpsc::Receiver<Neighbour>,
}

impl Neighbours {
    /// Opens netlink sockets, served by the runtime. What has failed already is told first.
    ///
    /// # Errors
    ///
    /// No descriptor, or no memory.
    pub fn open() -> io::Result<Self> {
        let (sender, words) = mpsc::channel(WAITING_MAX);
        let (mut connection, handle, mut messages) = new_connection()?;
        connection.socket_mut().socket_mut().bind(&SocketAddr::new(0, NEIGHBOURS))?;
        tokio::spawn(connection);
        tokio::spawn(async move {
            // The table after the subscription, so that nothing falls between them.
            for family in [IpVersion::V4, IpVersion::V6] {
                let mut table = handle.neighbours().get().set_family(family).execute();
                while let Ok(Some(entry)) = table.try_next().await {
                    let word = read(&entry, false).filter(|word| word.failed);
                    if let Some(word) = word
                        && sender.send(word).await.is_err()
                    {
                        return;
                    }
                }
            }
            while let Some((message, _)) = messages.next().await {
                if let Some(word) = word(&message)
                    && sender.send(word).await.is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { words })
    }

    /// Waits for words. Cancel safe: what was not returned waits on.
    pub async fn next(&mut self) -> Vec<Neighbour> {
        let mut words = Vec::new();
        if self.words.recv_many(&mut words, WAITING_MAX).await == 0 {
            // The task has ended, which it only does with the runtime.
            std::future::pending::<()>().await;
        }
        words
    }
}

fn word(message: &NetlinkMessage<RouteNetlinkMessage>) -> Option<Neighbour> {
    match &message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => read(entry, false),
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(entry)) => read(entry, true),
        _ => None,
    }
}

/// What an entry says; `None` while it is still being asked for.
fn read(entry: &NeighbourMessage, is_gone: bool) -> Option<Neighbour> {
    let failed = match entry.header.state {
        _ if is_gone => false,
        NeighbourState::Failed => true,
        NeighbourState::Reachable
        | NeighbourState::Stale
        | NeighbourState::Delay
        | NeighbourState::Permanent
        | NeighbourState::Noarp => false,
        // Asked for, or asked again: not known yet.
        _ => return None,
    };
    let address = entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })?;
    Some(Neighbour { interface: entry.header.ifindex, address, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: NeighbourState) -> NeighbourMessage {
        let mut entry = NeighbourMessage::default();
        (entry.header.ifindex, entry.header.state) = (7, state);
        entry.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 0, 1, 10].into())));
        entry
    }

    #[test]
    fn only_what_is_known_is_said() {
        let failed = |state, gone| read(&entry(state), gone).map(|word| word.failed);
        assert_eq!(failed(NeighbourState::Failed, false), Some(true));
        assert_eq!(failed(NeighbourState::Reachable, false), Some(false));
        assert_eq!(failed(NeighbourState::Stale, false), Some(false));
        assert_eq!(failed(NeighbourState::Incomplete, false), None);
        assert_eq!(failed(NeighbourState::Probe, false), None, "it may still answer");
        assert_eq!(failed(NeighbourState::Failed, true), Some(false), "forgotten, so nothing is known of it");
        let word = read(&entry(NeighbourState::Failed), false).expect("a word");
        assert_eq!((word.interface, word.address), (7, IpAddr::from([10, 0, 1, 10])));
    }
}
